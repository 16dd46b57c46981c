"""What every backend offers, so that gates need not know which one answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from pytest_ane.core.arrays import Array, Arrays, FloatArray
from pytest_ane.mil.records import Feature


class Runner(Protocol):
    """A loaded artifact, ready to predict."""

    @property
    def inputs(self) -> tuple[Feature, ...]:
        """The inputs that the artifact declares, images and scalars among them."""
        ...

    def make_state(self) -> Any:
        """Fresh states for a sequence, to be passed to `predict`; None where it keeps none."""
        ...

    def read_states(self, state: Any, names: Collection[str] | None = None) -> dict[str, Array]:
        """Copies of a sequence's states by name: of all, or of some."""
        ...

    def write_states(self, state: Any, values: Arrays) -> None:
        """Give states back what `read_states` copied; the others stay as they are."""
        ...

    def predict(self, inputs: Arrays, state: Any = None) -> dict[str, FloatArray]:
        """Outputs by name in float32; inputs the artifact does not declare are ignored.

        Raises:
            ExecutionError: an input is missing or does not fit the declared type and shape.
        """
        ...

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[Any]
    ) -> list[dict[str, FloatArray]]:
        """`predict` on each of several inputs, each with a state of its own or None."""
        ...


class Backend(Protocol):
    """Loads artifacts; its provenance goes into every measurement."""

    name: str
    on_device: bool
    """Whether it runs artifacts on the hardware they are for, so that it may prove placement."""

    def load(self, artifact: Path) -> Runner:
        """Load a package or a compiled model; `ProgramError` where it cannot be read."""
        ...

    def provenance(self) -> dict[str, str]:
        """Backend, versions and machine: numbers of different provenance are never compared."""
        ...
