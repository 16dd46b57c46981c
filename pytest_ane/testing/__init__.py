"""Test your own gates without a Mac: Core ML's answers from a script, or as recorded on one."""

from __future__ import annotations

from pytest_ane.testing.recorder import Recorder
from pytest_ane.testing.replayer import Replayer
from pytest_ane.testing.script import Devices, Failure, Machine, Script, code_14, stale

__all__ = ["Devices", "Failure", "Machine", "Recorder", "Replayer", "Script", "code_14", "stale"]
