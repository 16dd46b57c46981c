"""What a Mac answered, in files: plans as coremltools writes them, predictions as safetensors.

A model is known again by its operations and its weights, wherever it lies and whoever compiled it;
a prediction by its model, function, compute units, inputs, and all that its state went through.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.core.digests import file_digest, key_digest
from pytest_ane.core.errors import AneError, PlanError, RecordingError
from pytest_ane.core.files import write_atomically
from pytest_ane.gates.placement.plans import Plan, PlannedOperation, coremltools, read_plan
from pytest_ane.mil import read_model
from pytest_ane.mil.records import Model, Operation
from pytest_ane.testing.plans import Usage, compile_time, walk

VALUE = "value"
"""Name of a state's value among the arrays of a file."""
_MODEL = "model"
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Identity:
    """What a model is known by: SHA-256 of the names of what it computes, and of its weights."""

    operations: str
    weights: str


def identity(model: Model) -> Identity:
    """A model's identity, the same for a package and for what was compiled of it."""
    names = [(f, scope, op.name) for f, scope, op in walk(model) if not compile_time(op.op)]
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


def question(
    model: Identity, function: str, units: str, data: Arrays, state: str | None
) -> str | None:
    """The digest of a prediction; None for inputs that are no arrays.

    Args:
        model: the model asked.
        function: one of several; empty for the default.
        units: the compute units allowed.
        data: the inputs, numbers or images.
        state: the digest of what the state went through; None for no state.
    """
    arrays = {name: np.asarray(value) for name, value in data.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        return None
    return key_digest([model.operations, model.weights, function, units, described(arrays), state])


def described(arrays: Arrays) -> list[tuple[str, str, tuple[int, ...], str]]:
    """Arrays by name, dtype, shape and SHA-256."""
    return [
        (name, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in sorted(arrays.items())
    ]


class Recording:
    """A folder of answers."""

    def __init__(self, folder: Path) -> None:
        self._plans, self._values = folder / "plans", folder / "values"
        self._read: list[tuple[Identity, Plan]] | None = None
        self._asked: dict[tuple[str, str], int] = {}

    def write_plan(self, model: Identity, plan: Plan) -> None:
        """Keep a plan beside those there are."""
        self._plans.mkdir(parents=True, exist_ok=True)
        known = {"operations": model.operations, "weights": model.weights}
        data = coremltools.write(replace(plan, extra={**plan.extra, _MODEL: known}))
        file = self._plans / f"{len(list(self._plans.glob('*.json'))):05}.json"
        write_atomically(file, (json.dumps(data, indent=1) + "\n").encode())

    def usages(self, path: str, model: Model, units: str) -> dict[Operation, Usage] | None:
        """The recorded usage of every operation; None where no plan is recorded at all.

        Plans of one model come in the order in which they were made, the last again and again.

        Raises:
            RecordingError: plans are recorded, but not of this model with these compute units.
        """
        if not self._recorded():
            return None
        asked = identity(model)
        alike = [
            one for one in self._recorded()
            if one[0].operations == asked.operations and one[1].compute_units == units
        ]  # fmt: skip
        same = [plan for known, plan in alike if known.weights == asked.weights]
        if not same:
            raise RecordingError(
                f"{path}: the recording has no plan of this model with {units}; record it again."
            )
        turn = self._asked.get((asked.operations + asked.weights, units), 0)
        self._asked[asked.operations + asked.weights, units] = turn + 1
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


def _usages(model: Model, plan: Plan) -> dict[Operation, Usage]:
    planned: dict[object, list[PlannedOperation]] = {}
    for name, entry in plan.walk():
        planned.setdefault((name, entry.scope, entry.name, entry.op), []).append(entry)
    found = {}
    for function, scope, operation in walk(model):
        # What has no outputs, such as `write_state`, has no name, and comes in the file's order.
        name = operation.name if operation.outputs else ""
        entries = planned.get((function, scope, name, operation.op))
        one = entries.pop(0) if entries else None
        if one is not None and one.preferred is not None:
            found[operation] = Usage(one.preferred, one.supported, one.cost)
    return found


class State:
    """A state's native side, and the digest of all it went through.

    Args:
        inner: the native side of the one who answers.
        read: gives a value, from its digest and how to ask `inner` for it.

    Attributes:
        digest: of its predictions and of what was written to it.
        played: whether a recorded prediction went through it, of which `inner` knows nothing.
    """

    def __init__(self, inner: Any, read: Callable[[State, str, Callable[[], Any]], Any]) -> None:
        self.inner, self._read = inner, read
        self.digest, self.played = "", False

    def then(self, event: object) -> None:
        """It went through something more."""
        self.digest = key_digest([self.digest, event])

    def read_state(self, name: str) -> Any:
        """A copy of a state's value."""
        key = key_digest([self.digest, name])
        return self._read(self, key, lambda: self.inner.read_state(name))

    def write_state(self, name: str, value: Any) -> None:
        """Another value for a state."""
        self.inner.write_state(name, value)
        self.then(described({name: np.asarray(value)}))
