"""The first run on a Mac: what the Core ML backend assumes, checked step by step.

`run` measures, each step in a child process; `archive` packs the facts; `findings` compares them
with what was assumed.
"""

from __future__ import annotations

from pytest_ane.first_contact.archive import Archive, pack, read_archive
from pytest_ane.first_contact.findings import ASSUMPTIONS, Finding, compare
from pytest_ane.first_contact.run import Run
from pytest_ane.first_contact.steps import STEPS, Setup

__all__ = [
    "ASSUMPTIONS",
    "STEPS",
    "Archive",
    "Finding",
    "Run",
    "Setup",
    "compare",
    "pack",
    "read_archive",
]
