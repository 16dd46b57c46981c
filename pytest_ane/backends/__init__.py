"""What runs an artifact: `cpu`, our executor, anywhere; `coreml`, Core ML, on macOS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Protocol

from pytest_ane.backends.coreml import CoreMLBackend, Machine
from pytest_ane.backends.coreml.process import DEVICE_TIMEOUT, Device
from pytest_ane.backends.cpu import CpuBackend
from pytest_ane.make import Cache
from pytest_ane.manifest import ComputeUnits
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.arrays import Array, Arrays, FloatArray
from pytest_ane.mlprogram.model import counterpart
from pytest_ane.mlprogram.records import MLModel, Pipeline

__all__ = [
    "Backend",
    "ComputeUnits",
    "CoreMLBackend",
    "CpuBackend",
    "Runner",
    "SimulatingBackend",
    "get_backend",
    "of_function",
]


class Runner(Protocol):
    """A loaded artifact, ready to predict."""

    @property
    def model(self) -> MLModel | Pipeline:
        """The artifact as read from disk: what it declares, images and scalars among its inputs."""

    def make_state(self) -> Any:
        """Fresh states for a sequence, to be passed to `predict`; None where it keeps none."""

    def read_states(self, state: Any, names: Collection[str] | None = None) -> dict[str, Array]:
        """Copies of a sequence's states by name: of all, or of some."""

    def write_states(self, state: Any, values: Arrays) -> None:
        """Give states back what `read_states` copied; the others stay as they are."""

    def predict(self, inputs: Arrays, state: Any = None) -> dict[str, FloatArray]:
        """Outputs by name in float32; inputs the artifact does not declare are ignored.

        Raises:
            ExecutionError: an input is missing or does not fit the declared type and shape.
        """

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[Any]
    ) -> list[dict[str, FloatArray]]:
        """`predict` on each of several inputs, each with a state of its own or None."""


class Backend(Protocol):
    """Loads artifacts; its provenance goes into every measurement."""

    name: str

    @property
    def on_device(self) -> bool:
        """Whether it runs artifacts on a machine with an ANE, so that it may prove placement."""

    def load(self, artifact: Path, function: str | None = None) -> Runner:
        """Load a model, or a function, by default its own; `ProgramError` where there is none."""

    def simulated(self) -> SimulatingBackend | None:
        """The same in the ANE's arithmetic; None for a device, which computes in its own."""

    def provenance(self) -> dict[str, str]:
        """Backend, versions and machine: numbers of different provenance are never compared."""


class SimulatingBackend(Backend, Protocol):
    """A backend in the ANE's arithmetic."""

    @property
    def rule_shares(self) -> RuleShares:
        """By which rules all that it loaded, and that is still in use, has computed so far."""


def of_function(backend: Backend, function: str | None) -> Backend:
    """A backend that loads this function, or its counterpart, where its caller names none."""
    if (mine := function) is None:
        return backend

    def load(artifact: Path, function: str | None = None) -> Runner:
        return backend.load(artifact, function or counterpart(artifact, mine))

    bound = copy(backend)
    bound.load = load  # type: ignore[method-assign]
    return bound


def get_backend(
    name: str, *, cache: Cache | None = None, units: ComputeUnits = "CPU_AND_NE",
    say: Callable[[str], None] = print, machine: Machine | None = None,
    timeout: float | None = DEVICE_TIMEOUT,
) -> Backend:  # fmt: skip
    """`cpu` or `coreml`, with arguments as of `CoreMLBackend`; `BackendError` without Core ML."""
    if name == "coreml":
        return CoreMLBackend(cache or Cache(), units, say, machine, Device(timeout))
    assert name == "cpu", name
    return CpuBackend()
