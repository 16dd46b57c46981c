"""Test your own gates without a Mac: Core ML's answers from a script, or as recorded on one."""

from __future__ import annotations

from pytest_ane.testing.recorder import Recorder
from pytest_ane.testing.replayer import Replayer
from pytest_ane.testing.script import (
    INTEL,
    TRANSLATED,
    VIRTUAL,
    DeviceRule,
    Failure,
    Mac,
    Rewrite,
    Script,
    code_14,
    stale,
)
from pytest_ane.testing.slow import slowed

__all__ = [
    "INTEL",
    "TRANSLATED",
    "VIRTUAL",
    "DeviceRule",
    "Failure",
    "Mac",
    "Recorder",
    "Replayer",
    "Rewrite",
    "Script",
    "code_14",
    "slowed",
    "stale",
]
