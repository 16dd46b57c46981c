"""Recording what Core ML answers, for a `Replayer` to answer the same elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pytest_ane.core.errors import ExecutionError, RecordingError
from pytest_ane.gates.placement.device import to_record
from pytest_ane.testing.recording import VALUE, Recording, State, question, read_identity
from pytest_ane.testing.script import NAME, Failure, Machine, Point, Script


class Recorder:
    """While it is entered, every answer of Core ML is kept; on leaving, a recording is complete.

    Args:
        folder: where `script.json`, `plans/` and `values/` are written; made if need be.

    Raises:
        RecordingError: on entering, there is no native module to record, or the folder holds a
            recording already.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._exit = ExitStack()
        self._tape: Any = None
        self._cores = 0

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be kept, a sentence each."""
        return tuple(self._tape.skipped) if self._tape else ()

    def __enter__(self) -> Recorder:
        from pytest_ane.build.coremltools_quiet import import_coremltools
        from pytest_ane.predict.hook import NATIVE, in_place
        from pytest_ane.testing.recorder import Tape, taped

        import_coremltools()
        inner = sys.modules.get(NATIVE)
        if inner is None:
            raise RecordingError("there is no Core ML on this machine; record on a Mac.")
        if (self.folder / NAME).exists():
            raise RecordingError(
                f"{self.folder}: holds a recording; delete it, or record into another folder."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tape = Tape(self.folder)
        self._cores = _cores(inner)
        self._exit.enter_context(in_place(taped(inner, self._tape), None))
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()
        Script(
            _machine(self._cores),
            failures=tuple(self._tape.failures),
            compute=not self._tape.predicted,
        ).save(self.folder)


def _cores(native: ModuleType) -> int:
    """Cores of the Neural Engine; 0 without one."""
    devices = native._MLModelProxy.get_all_compute_devices()
    return sum(getattr(device, "total_core_count", 0) for device in devices)


def _machine(cores: int) -> Machine:
    return Machine(
        cores=cores,
        chip=_said("sysctl", "-n", "machdep.cpu.brand_string"),
        os=_said("sw_vers", "-productVersion"),
        build=_said("sw_vers", "-buildVersion"),
        compiler=_said("xcrun", "coremlcompiler", "version"),
    )


def _said(*command: str) -> str:
    """What a tool prints; empty where there is none, or where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


T = TypeVar("T")
_STATIC = (
    "auto_set_specification_version",
    "create_model_asset_from_memory",
    "create_model_asset_from_path",
    "get_all_compute_devices",
    "get_available_compute_devices",
    "get_model_structure",
    "maximum_supported_specification_version",
)


class Tape:
    """What has been answered so far.

    Attributes:
        failures: errors, each after as many answers of its kind as came before it.
        predicted: whether predictions are kept.
        skipped: what could not be kept, a sentence each.
    """

    def __init__(self, folder: Path) -> None:
        self.recording = Recording(folder)
        self.failures: list[Failure] = []
        self.predicted = False
        self.skipped: list[str] = []
        self._asked: Counter[str] = Counter()

    def ask(self, at: Point, path: str, answer: Callable[[], T], questions: int = 1) -> T:
        """An answer to one question or several; an error is kept and raised again."""
        after = self._asked[at]
        self._asked[at] += questions
        try:
            return answer()
        except RuntimeError as error:
            message = str(error).replace(path, "{path}") if path else str(error)
            self.failures.append(Failure(at, message, after=after))
            raise

    def plan(self, plan: Any, path: str, units: str) -> None:
        """Keep a plan."""
        model = read_identity(path)
        try:
            record = to_record(plan, units, path)
        except ExecutionError as error:
            self.skipped.append(str(error))
            return
        if model is None:
            self.skipped.append(f"{path}: its plan is not kept; it cannot be read as a program.")
        else:
            self.recording.write_plan(model, record)

    def values(self, key: str | None, values: Any, path: str) -> None:
        """Keep a prediction, or a state's value."""
        if key is not None and self.recording.write_values(key, values):
            self.predicted = True
        else:
            self.skipped.append(f"{path}: a prediction of other things than arrays is not kept.")


def taped(inner: ModuleType, tape: Tape) -> ModuleType:
    """A module that answers as `inner` does, and keeps the answers."""
    module = ModuleType(inner.__name__, inner.__doc__)
    vars(module).update({k: v for k, v in vars(inner).items() if not k.startswith("__")})
    vars(module).update(_MLModelProxy=_proxy(inner, tape))
    return module


def _proxy(inner: ModuleType, tape: Tape) -> type:
    native = inner._MLModelProxy

    class _MLModelProxy:
        """A loaded model."""

        def __init__(
            self,
            path: str,
            compute_units: str,
            function_name: str = "",
            hints: dict[str, str] | None = None,
            asset: Any = None,
        ) -> None:
            self._path, self._asked = path, (function_name, compute_units)
            self._model = read_identity(path) if path else None
            self._inner = tape.ask(
                "load", path, lambda: native(path, compute_units, function_name, hints, asset)
            )

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def predict(self, data: dict[str, Any], state: State | None = None) -> dict[str, Any]:
            key = self._key(data, state)
            inner_state = None if state is None else state.inner
            outputs: dict[str, Any] = tape.ask(
                "predict", self._path, lambda: self._inner.predict(data, inner_state)
            )
            tape.values(key, outputs, self._path)
            if state is not None:
                state.then(key)
            return outputs

        def batchPredict(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
            keys = [self._key(data, None) for data in batch]
            answers: list[dict[str, Any]] = tape.ask(
                "predict", self._path, lambda: self._inner.batchPredict(batch), len(batch)
            )
            for key, outputs in zip(keys, answers, strict=True):
                tape.values(key, outputs, self._path)
            return answers

        def newState(self) -> State:
            def read(state: State, key: str, ask: Callable[[], Any]) -> Any:
                value = ask()
                tape.values(key, {VALUE: value}, self._path)
                return value

            return State(self._inner.newState(), read)

        def _key(self, data: dict[str, Any], state: State | None) -> str | None:
            if self._model is None:
                return None
            digest = None if state is None else state.digest
            return question(self._model, *self._asked, data, digest)

        @staticmethod
        def compileModel(path: str) -> str:
            return str(tape.ask("compile", path, lambda: native.compileModel(path)))

        @staticmethod
        def get_compute_plan(path: str, compute_units: str) -> Any:
            plan = tape.ask("plan", path, lambda: native.get_compute_plan(path, compute_units))
            tape.plan(plan, path, compute_units)
            return plan

    for name in filter(partial(hasattr, native), _STATIC):
        setattr(_MLModelProxy, name, staticmethod(getattr(native, name)))
    return _MLModelProxy
