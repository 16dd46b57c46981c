"""What runs an artifact: `cpu`, our executor, anywhere."""

from __future__ import annotations

from pytest_ane.backends.base import Backend, Runner
from pytest_ane.backends.cpu import CpuBackend

__all__ = ["Backend", "CpuBackend", "Runner", "get_backend"]


def get_backend(name: str) -> Backend:
    """A backend by name; there is `cpu`."""
    assert name == "cpu", name
    return CpuBackend()
