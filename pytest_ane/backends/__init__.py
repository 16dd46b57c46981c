"""What runs an artifact: `cpu`, our executor, anywhere; `coreml`, Core ML, on macOS."""

from __future__ import annotations

from collections.abc import Callable

from pytest_ane.backends.base import Backend, Runner
from pytest_ane.backends.coreml import CoreMLBackend, Machine
from pytest_ane.backends.cpu import CpuBackend
from pytest_ane.build import Cache
from pytest_ane.manifest import ComputeUnits

__all__ = ["Backend", "ComputeUnits", "CoreMLBackend", "CpuBackend", "Runner", "get_backend"]


def get_backend(
    name: str,
    *,
    cache: Cache | None = None,
    units: ComputeUnits = "CPU_AND_NE",
    say: Callable[[str], None] = print,
    machine: Machine | None = None,
) -> Backend:
    """A backend by name, `cpu` or `coreml`; all other arguments are for `coreml`.

    Args:
        name: the backend's.
        cache: where compiled models are kept; the user's own by default.
        units: where Core ML may run a model.
        say: takes a sentence for each model that is compiled again.
        machine: this Mac, if known already.

    Raises:
        BackendError: there is no native Core ML here.
    """
    if name == "coreml":
        return CoreMLBackend(cache or Cache(), units, say, machine)
    assert name == "cpu", name
    return CpuBackend()
