"""Memories of a few lines, as runs write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ane.history.lines import History, Line


def line(number: int, figures: Mapping[str, float | str], **more: Any) -> Line:
    """The line of run `number`, a day after the one before."""
    known: dict[str, Any] = {
        "run": f"{number:032x}",
        "time": f"2026-01-{number + 1:02}T10:00:00Z",
        "commit": f"{number:040x}",
        "clean": True,
        "gate": "fidelity",
        "subject": "mini:L01",
        "artifact": "a" * 64,
        "backend": "cpu",
        "chip": "AMD EPYC",
        "os": "Linux x86_64",
        "versions": {"numpy": "2.3.0"},
    }
    return Line(**known | {"figures": figures} | more)


def write(folder: Path, *lines: Line) -> Path:
    """A memory of these lines."""
    history = History(folder)
    for each in lines:
        history.append(each)
    return folder
