"""A compiled model, loaded by Core ML and run through coremltools' Python interface."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.backends.base import Arrays
from pytest_ane.backends.coreml.known import explained
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import Feature, Model
from pytest_ane.reference.interface import bind_inputs

_SCALARS = ("doubleType", "int64Type")


class CoreMLRunner:
    """A loaded model.

    Args:
        model: the artifact as read from disk: what it declares.
        loaded: a `coremltools.models.CompiledMLModel` of the same function.
    """

    def __init__(self, model: Model, loaded: Any) -> None:
        self._model = model
        self._loaded = loaded
        self._tensors = replace(model, inputs=tuple(f for f in model.inputs if f.kind != "image"))

    @property
    def inputs(self) -> tuple[Feature, ...]:
        """The declared inputs."""
        return self._model.inputs

    def make_state(self) -> Any:
        """Fresh states, all zero; None where the model keeps none."""
        if not self._model.states:
            return None
        try:
            return self._loaded.make_state()
        except RuntimeError as error:
            raise self._failed("made no states", error) from None

    def read_states(
        self, state: Any, names: Collection[str] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Copies of states by name: of all, or of some.

        Raises:
            ExecutionError: Core ML failed.
        """
        if state is None:
            return {}
        wanted = [f.name for f in self._model.states] if names is None else names
        try:
            return {name: np.array(state.read_state(name)) for name in wanted}
        except RuntimeError as error:
            raise self._failed("could not read a state", error) from None

    def write_states(self, state: Any, values: Arrays) -> None:
        """Give states back what `read_states` copied; `ExecutionError` where Core ML failed."""
        try:
            for name, value in values.items():
                state.write_state(name, value)
        except RuntimeError as error:
            raise self._failed("could not write a state", error) from None

    def predict(self, inputs: Arrays, state: Any = None) -> dict[str, npt.NDArray[np.float32]]:
        """Run once, with the inputs that are declared.

        fp16 inputs are rounded to fp16 here, as on every backend; Core ML's Python interface takes
        them as float32. Outputs have the program's names.

        Raises:
            ExecutionError: an input is missing or does not fit, or Core ML failed.
        """
        given = self._given(inputs)
        try:
            found = self._loaded.predict(given, state)
        except RuntimeError as error:
            raise self._failed("could not predict", error) from None
        names = self._model.main.block.outputs
        if missing := [name for name in names if name not in found]:
            raise ExecutionError(
                f"{self._model.path}: Core ML gave no output {missing[0]!r}, but "
                f"{', '.join(found) or 'nothing'}; the compiled model is not of this package."
            )
        return {name: _returned(found[name]) for name in names}

    def predict_all(
        self, inputs: Sequence[Arrays], states: Sequence[Any]
    ) -> list[dict[str, npt.NDArray[np.float32]]]:
        """One after the other, each with a state of its own or None."""
        return [self.predict(x, state) for x, state in zip(inputs, states, strict=True)]

    def _given(self, inputs: Arrays) -> dict[str, Any]:
        """What coremltools hands to Core ML: arrays in the declared types, numbers, PIL images."""
        tensors = {f.name: f for f in self._tensors.inputs}
        arrays = {name: value for name, value in inputs.items() if name in tensors}
        given: dict[str, Any] = {
            name: array.item() if tensors[name].kind in _SCALARS else np.array(array, order="C")
            for name, array in bind_inputs(self._tensors, arrays, "as-typed").items()
        }
        images = (f.name for f in self._model.inputs if f.kind == "image")
        return given | {name: inputs[name] for name in images if name in inputs}

    def _failed(self, what: str, error: RuntimeError) -> ExecutionError:
        return ExecutionError(f"{self._model.path}: Core ML {what}: {explained(error)}.")


def load(model: Model, compiled: Path, units: str, coremltools: Any) -> CoreMLRunner:
    """Load a compiled model on compute units; Core ML's `RuntimeError` where it refuses."""
    loaded = coremltools.models.CompiledMLModel(
        str(compiled), coremltools.ComputeUnit[units], model.function or None
    )
    return CoreMLRunner(model, loaded)


def _returned(value: Any) -> Any:
    """Float32 as on every backend; a classifier's label and probabilities as they are."""
    numeric = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f"
    return np.array(value, np.float32, order="C") if numeric else value
