"""`coremltools.libcoremlpython` of a replayed Mac."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pytest_ane.mlprogram.errors import RecordingError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel, Operation
from pytest_ane.predict import native as served
from pytest_ane.testing import plans
from pytest_ane.testing.compiler import Failures, compile_model
from pytest_ane.testing.recording import (
    VALUE,
    Identity,
    Recording,
    TrackedState,
    prediction_key,
    read_identity,
)
from pytest_ane.testing.script import Script

_LISTS_DEVICES = 14
"""The version of macOS."""


class Answers:
    """What the native module asks: a script, and how far it has been played.

    Args:
        script: what is answered.
        folder: for counts of questions and planned paths, which child processes share.
        recording: recorded answers, which come first.
    """

    def __init__(self, script: Script, folder: Path, recording: Recording | None) -> None:
        self.script = script
        self.recording = recording
        self.failures = Failures(script, folder)
        self._paths = folder / "planned"
        self._leaked: list[bytes] = []

    def plan(self, path: str, units: str) -> Any:
        """A compiled model's plan in coremltools' record.

        Raises:
            RuntimeError: a failure is due; or the model is a package, for which Core ML would end
                the whole process.
            ProgramError: the model cannot be read.
            RecordingError: the recording has plans, but not this one.
        """
        if Path(path).suffix != ".mlmodelc":
            raise RuntimeError(
                f"{path} is not compiled; Core ML would end this process. Compile it first."
            )
        self.failures.raise_due("plan", path)
        self.leak()
        model = read_model(path, weights=False)
        return plans.compute_plan(
            model, self._usages(path, model, units), self.script.machine.cores
        )

    def leak(self) -> None:
        """Keep as much memory as the script says, which is written so that it is resident."""
        self._leaked.append(b"\1" * self.script.leak)

    def values(self, key: str | None, path: str, *, computed: bool) -> dict[str, Any] | None:
        """Recorded arrays; None where they are to be computed.

        Raises:
            RecordingError: they are not recorded, and the script or the state forbids to compute.
        """
        arrays = self.recording.values(key) if self.recording and key else None
        if arrays is None and not (computed and self.script.compute):
            raise RecordingError(
                f"{path}: the recording does not have this prediction; record it again, or let "
                "the executor compute all of them."
            )
        return arrays

    def identity(self, path: str) -> Identity | None:
        """A model's identity where a recording needs it."""
        return read_identity(path) if self.recording else None

    def _usages(self, path: str, model: MLModel, units: str) -> dict[Operation, plans.Usage]:
        if self._broken(path):
            return {}
        recorded = self.recording.usages(path, model, units) if self.recording else None
        return plans.by_rules(self.script, model, units) if recorded is None else recorded

    def _broken(self, path: str) -> bool:
        """Whether a path is among the first that were planned, in whichever process."""
        resolved = str(Path(path).resolve())
        paths = self._paths.read_text().splitlines() if self._paths.exists() else []
        if resolved not in paths:
            paths.append(resolved)
            self._paths.write_text("\n".join(paths))
        return paths.index(resolved) < self.script.unassigned_paths


def replaying_module(answers: Answers) -> ModuleType:
    """The native module of a replayed Mac; what has no recorded answer runs on the executor."""
    module = ModuleType("coremltools.libcoremlpython", __doc__)
    vars(module).update({name: getattr(served, name) for name in served.__all__})
    vars(module).update(PYTEST_ANE=True, _MLModelProxy=_proxy(answers))
    return module


def _as_read(value: Any) -> Any:
    """An int8 array as the native module reads it, with strides of 8 bytes.

    `sizeOfArrayElement` of coremlpython/CoreMLPythonUtils.mm knows no int8; what lies behind the
    array is zero here.
    """
    if not isinstance(value, np.ndarray) or value.dtype != np.int8:
        return value
    read = np.zeros(value.size, np.int8)
    every = value.reshape(-1)[::8]
    read[: every.size] = every
    return read.reshape(value.shape)


def _proxy(answers: Answers) -> type:
    script, failures = answers.script, answers.failures

    class _MLModelProxy(served._MLModelProxy):
        """A loaded model."""

        def __init__(
            self,
            path: str,
            compute_units: str,
            function_name: str = "",
            hints: dict[str, str] | None = None,
            asset: Any = None,
        ) -> None:
            failures.raise_due("load", path)
            answers.leak()
            super().__init__(path, compute_units, function_name, hints, asset)
            self._loaded_as = (function_name, compute_units)
            self._model = answers.identity(str(self._path))

        def predict(self, data: dict[str, Any], state: Any = None) -> dict[str, Any]:
            """A recorded prediction, or one of the executor."""
            path, key = str(self._path), self._key(data, state)
            failures.raise_due("predict", path)
            outputs = answers.values(key, path, computed=state is None or not state.played)
            if outputs is None:
                outputs = super().predict(data, None if state is None else state.inner)
                outputs = {name: _as_read(value) for name, value in outputs.items()}
            elif state is not None:
                state.played = True
            if state is not None:
                state.then(key)
            return outputs

        def newState(self) -> Any:
            """Fresh states."""
            failures.raise_due("state", str(self._path))

            def read(state: TrackedState, key: str, ask: Callable[[], Any]) -> Any:
                arrays = answers.values(key, str(self._path), computed=not state.played)
                return ask() if arrays is None else arrays[VALUE]

            return TrackedState(super().newState(), read)

        def _key(self, data: dict[str, Any], state: TrackedState | None) -> str | None:
            if self._model is None:
                return None
            return prediction_key(
                self._model, *self._loaded_as, data, None if state is None else state.digest
            )

        @staticmethod
        def compileModel(path: str) -> str:
            """A compiled model in a new folder."""
            with served.new_compiled() as target:
                return str(compile_model(Path(path), target, script, failures))

        @staticmethod
        def get_compute_plan(path: str, compute_units: str) -> Any:
            """A plan."""
            return answers.plan(path, compute_units)

        @staticmethod
        def get_all_compute_devices() -> list[Any]:
            """CPU, GPU and, where there is one, Neural Engine; an error before macOS 14."""
            if int(script.machine.os.partition(".")[0]) < _LISTS_DEVICES:
                raise RuntimeError("MLComputeDevice is only available on macOS >= 14.0")
            devices = plans.devices(script.machine.cores)
            return [devices[name] for name in devices if name != "ANE" or script.machine.cores]

        get_available_compute_devices = get_all_compute_devices

    return _MLModelProxy
