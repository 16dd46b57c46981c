"""What a Mac answered, in files: plans as coremltools writes them, predictions as safetensors.

A model is known again by its operations and its weights, wherever it lies and whoever compiled it;
a prediction by its model, function, compute units, inputs, and all that its state went through.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock

from pytest_ane.gates.placement.measure import to_record
from pytest_ane.gates.placement.plans import Plan, PlannedOperation, coremltools, read_plan
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.digests import file_digest, key_digest
from pytest_ane.mlprogram.errors import AneError, ExecutionError, PlanError, RecordingError
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel, Operation
from pytest_ane.predict.plan import is_constant
from pytest_ane.testing.plans import Usage, walk
from pytest_ane.testing.script import LOCK, Failure, Point

VALUE = "value"
"""Name of a state's value among the arrays of a file."""
_MODEL = "model"


@dataclass(frozen=True)
class Identity:
    """What a model is known by: SHA-256 of the names of what it computes, and of its weights."""

    operations: str
    weights: str


def identity(model: MLModel) -> Identity:
    """A model's identity, the same for a package and for what was compiled of it."""
    names = [(f, scope, op.name) for f, scope, op in walk(model) if not is_constant(op.op)]
    folder = Path(model.weights)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = [(file.name, file_digest(file)) for file in files if file.is_file()]
    return Identity(key_digest(names), key_digest(weights))


def read_identity(path: str) -> Identity | None:
    """The identity of a model on disk; None for what is no ML Program of its own."""
    try:
        return identity(read_model(path, weights=False))
    except AneError:
        return None


def prediction_key(
    model: Identity, function: str, units: str, data: Arrays, state: str | None
) -> str | None:
    """The digest of a prediction; None for inputs that are no arrays.

    Args:
        model: the model that predicts.
        function: one of several; empty for the default.
        units: the compute units allowed.
        data: the inputs, numbers or images.
        state: the digest of what the state went through; None for no state.
    """
    arrays = {name: np.asarray(value) for name, value in data.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        return None
    return key_digest(
        [model.operations, model.weights, function, units, array_digests(arrays), state]
    )


def array_digests(arrays: Arrays) -> list[tuple[str, str, tuple[int, ...], str]]:
    """Arrays by name, dtype, shape and SHA-256."""
    return [
        (name, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in sorted(arrays.items())
    ]


class Recording:
    """A folder of recorded answers: `plans/*.json` and `values/*.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self._plans, self._values = folder / "plans", folder / "values"
        self._read: list[tuple[Identity, Plan]] | None = None
        self._turns: dict[tuple[str, str], int] = {}

    def write_plan(self, model: Identity, plan: Plan) -> None:
        """Keep a plan after those that are kept already."""
        self._plans.mkdir(parents=True, exist_ok=True)
        identity = {"operations": model.operations, "weights": model.weights}
        data = coremltools.write(replace(plan, extra={**plan.extra, _MODEL: identity}))
        text = json.dumps(data, indent=1) + "\n"
        with FileLock(self._plans.parent / LOCK):
            file = self._plans / f"{len(list(self._plans.glob('*.json'))):05}.json"
            write_atomically(file, text.encode())

    def usages(self, path: str, model: MLModel, units: str) -> dict[Operation, Usage] | None:
        """The recorded usage of every operation; None where no plan is recorded at all.

        Plans of one model come in the order in which they were made, the last again and again.

        Raises:
            RecordingError: plans are recorded, but not of this model with these compute units.
        """
        if not self._recorded():
            return None
        wanted = identity(model)
        alike = [
            entry for entry in self._recorded()
            if entry[0].operations == wanted.operations and entry[1].compute_units == units
        ]  # fmt: skip
        same = [plan for recorded, plan in alike if recorded.weights == wanted.weights]
        if not same:
            raise RecordingError(
                f"{path}: the recording has no plan of this model with {units}; record it again."
            )
        turn = self._turns.get((wanted.operations + wanted.weights, units), 0)
        self._turns[wanted.operations + wanted.weights, units] = turn + 1
        return _usages(model, same[min(turn, len(same) - 1)])

    def write_values(self, key: str, values: Arrays) -> bool:
        """Keep arrays under a digest; False for values that are none."""
        from safetensors.numpy import save

        arrays = {name: np.asarray(value) for name, value in values.items()}
        if any(array.dtype.kind not in "biuf" for array in arrays.values()):
            return False
        self._values.mkdir(parents=True, exist_ok=True)
        ready = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomically(self._values / f"{key}.safetensors", save(ready))
        return True

    def values(self, key: str) -> dict[str, Any] | None:
        """The arrays under a digest, if there are any.

        Raises:
            RecordingError: the file is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = self._values / f"{key}.safetensors"
        try:
            return load(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise RecordingError(f"{file}: is damaged ({error}); record it again.") from None

    def _recorded(self) -> list[tuple[Identity, Plan]]:
        if self._read is None:
            self._read = [_plan(file) for file in sorted(self._plans.glob("*.json"))]
        return self._read


def _plan(file: Path) -> tuple[Identity, Plan]:
    try:
        plan = read_plan(file)
        return Identity(**plan.extra[_MODEL]), plan
    except PlanError as error:
        raise RecordingError(str(error)) from None
    except (KeyError, TypeError):
        raise RecordingError(f"{file}: does not say of which model it is; record again.") from None


def _usages(model: MLModel, plan: Plan) -> dict[Operation, Usage]:
    planned: dict[object, list[PlannedOperation]] = {}
    for name, entry in plan.walk():
        planned.setdefault((name, entry.scope, entry.name, entry.op), []).append(entry)
    usages = {}
    for function, scope, operation in walk(model):
        # What has no outputs, such as `write_state`, has no name, and comes in the file's order.
        name = operation.name if operation.outputs else ""
        entries = planned.get((function, scope, name, operation.op))
        match = entries.pop(0) if entries else None
        if match is not None and match.preferred is not None:
            usages[operation] = Usage(match.preferred, match.supported, match.cost)
    return usages


class TrackedState:
    """A state's native side, and the digest of all it went through.

    Args:
        inner: the native side of the one who answers.
        read: gives a value, from its digest and how to ask `inner` for it.

    Attributes:
        digest: of its predictions and of what was written to it.
        played: whether a recorded prediction went through it, of which `inner` knows nothing.
    """

    def __init__(
        self, inner: Any, read: Callable[[TrackedState, str, Callable[[], Any]], Any]
    ) -> None:
        self.inner, self._read = inner, read
        self.digest, self.played = "", False

    def then(self, event: object) -> None:
        """Fold an event into the state's digest."""
        self.digest = key_digest([self.digest, event])

    def read_state(self, name: str) -> Any:
        """A copy of a state's value."""
        key = key_digest([self.digest, name])
        return self._read(self, key, lambda: self.inner.read_state(name))

    def write_state(self, name: str, value: Any) -> None:
        """Set a state's value, which becomes part of its digest."""
        self.inner.write_state(name, value)
        self.then(array_digests({name: np.asarray(value)}))


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


class AnswerLog:
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
        self._counts: Counter[str] = Counter()

    def ask(self, at: Point, path: str, answer: Callable[[], T], questions: int = 1) -> T:
        """An answer to one question or several; an error is kept and raised again."""
        after = self._counts[at]
        self._counts[at] += questions
        try:
            return answer()
        except RuntimeError as error:
            message = str(error).replace(path, "{path}") if path else str(error)
            self.failures.append(Failure(at, message, after=after))
            raise

    def plan(self, plan: Any, path: str, units: str) -> None:
        """Keep a plan that Core ML gave, under its model and compute units."""
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


def recording_module(inner: ModuleType, log: AnswerLog) -> ModuleType:
    """A module that answers as `inner` does, and keeps the answers."""
    module = ModuleType(inner.__name__, inner.__doc__)
    vars(module).update({k: v for k, v in vars(inner).items() if not k.startswith("__")})
    vars(module).update(_MLModelProxy=_proxy(inner, log), INSTALLER=None)
    return module


def _proxy(inner: ModuleType, log: AnswerLog) -> type:
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
            self._path, self._loaded_as = path, (function_name, compute_units)
            self._model = read_identity(path) if path else None
            self._inner = log.ask(
                "load", path, lambda: native(path, compute_units, function_name, hints, asset)
            )

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def predict(
            self, data: dict[str, Any], state: TrackedState | None = None
        ) -> dict[str, Any]:
            key = self._key(data, state)
            inner_state = None if state is None else state.inner
            outputs: dict[str, Any] = log.ask(
                "predict", self._path, lambda: self._inner.predict(data, inner_state)
            )
            log.values(key, outputs, self._path)
            if state is not None:
                state.then(key)
            return outputs

        def batchPredict(self, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
            keys = [self._key(data, None) for data in batch]
            answers: list[dict[str, Any]] = log.ask(
                "predict", self._path, lambda: self._inner.batchPredict(batch), len(batch)
            )
            for key, outputs in zip(keys, answers, strict=True):
                log.values(key, outputs, self._path)
            return answers

        def newState(self) -> TrackedState:
            def read(state: TrackedState, key: str, ask: Callable[[], Any]) -> Any:
                value = ask()
                log.values(key, {VALUE: value}, self._path)
                return value

            return TrackedState(self._inner.newState(), read)

        def _key(self, data: dict[str, Any], state: TrackedState | None) -> str | None:
            if self._model is None:
                return None
            digest = None if state is None else state.digest
            return prediction_key(self._model, *self._loaded_as, data, digest)

        @staticmethod
        def compileModel(path: str) -> str:
            return str(log.ask("compile", path, lambda: native.compileModel(path)))

        @staticmethod
        def get_compute_plan(path: str, compute_units: str) -> Any:
            plan = log.ask("plan", path, lambda: native.get_compute_plan(path, compute_units))
            log.plan(plan, path, compute_units)
            return plan

    for name in filter(partial(hasattr, native), _STATIC):
        setattr(_MLModelProxy, name, staticmethod(getattr(native, name)))
    return _MLModelProxy
