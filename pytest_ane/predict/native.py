"""Our `coremltools.libcoremlpython`: the classes coremltools' Python layer expects of it.

Only what is behind coremltools' own classes is here; signatures follow its calls (coremltools 9.0,
`models/model.py`, `models/_compiled_model.py`, `models/compute_plan.py`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pytest_ane.core.errors import AneError
from pytest_ane.mil import read_any, read_model
from pytest_ane.mil.compile import write_compiled
from pytest_ane.predict import ANSWER, assets, plan
from pytest_ane.predict.assets import _MLModelAssetProxy, temporary_folder
from pytest_ane.predict.boundary import given, returned
from pytest_ane.predict.plan import (
    _MLComputePlanProxy,
    _MLCPUComputeDeviceProxy,
    _MLGPUComputeDeviceProxy,
    _MLNeuralEngineComputeDeviceProxy,
)
from pytest_ane.reference import PipelineSession, Session, open_session
from pytest_ane.reference.state import States

__all__ = [
    "_MLCPUComputeDeviceProxy",
    "_MLComputePlanProxy",
    "_MLGPUComputeDeviceProxy",
    "_MLModelAssetProxy",
    "_MLModelProxy",
    "_MLNeuralEngineComputeDeviceProxy",
]

PYTEST_ANE = True
_NEWEST_SPECIFICATION = 10
_FAILED = "Error computing NN outputs: Unable to compute the prediction using ML Program."


@cache
def say_once() -> None:
    """Say on stderr which backend answers; once in a process."""
    print(f"coremltools: {ANSWER}", file=sys.stderr)


class _MLModelProxy:
    """A loaded model.

    What cannot be read or run is said when somebody predicts, not when the model is loaded:
    conversion loads every model it makes, whether or not anybody wants to predict with it.
    """

    def __init__(
        self,
        path: str,
        compute_units: str,
        function_name: str = "",
        hints: dict[str, str] | None = None,
        asset: Any = None,
    ) -> None:
        del compute_units, hints
        self._path = Path(asset.path if asset is not None else path)
        self._error: AneError | None = None
        self._session: Session | PipelineSession | None = None
        started = time.perf_counter_ns()
        try:
            self._session = open_session(read_any(self._path, function=function_name or None))
        except AneError as error:
            self._error = error
        self._loading = time.perf_counter_ns() - started
        self._predicting: int | None = None
        self._compiled: Path | None = None

    def predict(self, data: dict[str, Any], state: _State | None = None) -> dict[str, Any]:
        """Outputs by name, as Core ML's Python interface returns them.

        Raises:
            AneError: the model cannot be read or run here at all.
            RuntimeError: this prediction failed; begins as Core ML's own message does.
        """
        session = self._ready()
        say_once()
        started = time.perf_counter_ns()
        states = None if state is None else state.states
        try:
            outputs = session.predict(given(session.model, data), states)
            self._predicting = time.perf_counter_ns() - started
            return returned(session.model, outputs)
        except AneError as error:
            raise RuntimeError(f"{_FAILED} {error}") from error

    def batchPredict(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Predictions one after the other."""
        return [self.predict(data) for data in batch]

    def newState(self) -> _State:
        """Fresh states."""
        return _State(self._ready().make_state())

    def get_load_duration_in_nano_seconds(self) -> int:
        """Time to read and prepare the model."""
        return self._loading

    def get_last_predict_duration_in_nano_seconds(self) -> int | None:
        """Time of the latest prediction."""
        return self._predicting

    def get_compiled_model_path(self) -> str:
        """A folder with `model.mil`, weights and description; deleted with the model."""
        if self._compiled is None:
            self._compiled = temporary_folder(self) / "model.mlmodelc"
            self._compile(self._path, self._compiled)
        return str(self._compiled)

    @staticmethod
    def compileModel(path: str) -> str:
        """A compiled model in a new folder, which the caller moves or deletes.

        Raises:
            RuntimeError: the model cannot be read, or is no ML Program.
        """
        folder = Path(mkdtemp(prefix="pytest-ane-"))
        return str(_MLModelProxy._compile(Path(path), folder / f"{Path(path).stem}.mlmodelc"))

    @staticmethod
    def _compile(path: Path, target: Path) -> Path:
        try:
            return write_compiled(read_model(path), target)
        except AneError as error:
            raise RuntimeError(f"Error compiling model: {error}") from error

    @staticmethod
    def get_model_structure(path: str) -> Any:
        """The structure of a compiled model, in coremltools' records."""
        return plan.structure(Path(path))

    @staticmethod
    def get_compute_plan(path: str, compute_units: str) -> Any:
        """The plan of a compiled model: this machine's CPU, whatever units are asked for."""
        del compute_units
        return plan.plan(Path(path))

    @staticmethod
    def get_all_compute_devices() -> list[Any]:
        """The CPU."""
        return plan.devices()

    @staticmethod
    def get_available_compute_devices() -> list[Any]:
        """The CPU."""
        return plan.devices()

    @staticmethod
    def create_model_asset_from_path(path: str) -> Any:
        """An asset of a compiled model."""
        return assets.from_path(path)

    @staticmethod
    def create_model_asset_from_memory(data: bytes, blobs: Mapping[str, bytes]) -> Any:
        """An asset of a specification and its weights files."""
        return assets.from_memory(data, blobs)

    @staticmethod
    def maximum_supported_specification_version() -> int:
        """Core ML's specification version up to which models are read."""
        return _NEWEST_SPECIFICATION

    def _ready(self) -> Session | PipelineSession:
        if self._session is None:
            # Not a RuntimeError: a test that expects Core ML to fail must not pass for this.
            assert self._error is not None
            raise self._error
        return self._session


class _State:
    """A state's native side."""

    def __init__(self, states: States) -> None:
        self.states = states

    def read_state(self, name: str) -> Any:
        """A copy of a state's value."""
        return self._named(name).read().copy()

    def write_state(self, name: str, value: Any) -> None:
        """Another value for a state."""
        try:
            self._named(name).write(value)
        except ValueError as error:
            raise RuntimeError(str(error)) from None

    def _named(self, name: str) -> Any:
        if name not in self.states:
            known = ", ".join(self.states)
            raise RuntimeError(f"no state {name!r}; there are: {known}")
        return self.states[name]
