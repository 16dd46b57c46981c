"""The `coreml` backend: artifacts compiled, loaded and run by Core ML, on macOS."""

from __future__ import annotations

from pytest_ane.backends.coreml.backend import CoreMLBackend
from pytest_ane.backends.coreml.machine import Machine, check_native, without_ane

__all__ = ["CoreMLBackend", "Machine", "check_native", "without_ane"]
