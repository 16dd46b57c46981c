"""Our `coremltools.libcoremlpython`: the classes coremltools' Python layer expects of it.

Only what is behind coremltools' own classes is here; signatures follow its calls (coremltools 9.0,
`models/model.py`, `models/_compiled_model.py`, `models/compute_plan.py`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pytest_ane.errors import AneError
from pytest_ane.mil import read_any
from pytest_ane.predict.boundary import given, returned
from pytest_ane.reference import PipelineSession, Session, open_session
from pytest_ane.reference.state import States

PYTEST_ANE = True
_NEWEST_SPECIFICATION = 10


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

    def predict(self, data: dict[str, Any], state: _State | None = None) -> dict[str, Any]:
        """Outputs by name, as Core ML's Python interface returns them.

        Raises:
            RuntimeError: one sentence, as Core ML's own module raises.
        """
        session = self._ready()
        started = time.perf_counter_ns()
        states = None if state is None else state.states
        try:
            outputs = session.predict(given(session.model, data), states)
            self._predicting = time.perf_counter_ns() - started
            return returned(session.model, outputs)
        except AneError as error:
            raise RuntimeError(str(error)) from error

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

    @staticmethod
    def maximum_supported_specification_version() -> int:
        """Core ML's specification version up to which models are read."""
        return _NEWEST_SPECIFICATION

    def _ready(self) -> Session | PipelineSession:
        if self._session is None:
            raise RuntimeError(str(self._error)) from self._error
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
