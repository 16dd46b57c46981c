"""Answers of a Mac: kept in files as they come, and given again from files or a script.

A `Recording` is the folder between `Log`, in front of Core ML, and `Replay`, in front of the
executor. A model is known again by its operations and weights; a prediction by its model, function,
compute units, inputs, and all that its state went through.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytest_ane.gates.placement.measure import to_record
from pytest_ane.gates.placement.plans import Plan, coremltools, read_plan
from pytest_ane.mac import _native
from pytest_ane.mac._compiler import Failures, compile_model, is_constant
from pytest_ane.mac._native import Question, array_digests
from pytest_ane.mac._plans import Usage, by_rules, compute_plan, devices, walk
from pytest_ane.mac._script import Failure, Script
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.atomic import write_atomically
from pytest_ane.mlprogram.digests import file_digest, key_digest
from pytest_ane.mlprogram.errors import AneError, ExecutionError, PlanError, RecordingError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel, Operation

VALUE = "value"
"""Name of a state's value among the arrays of a file."""
_MODEL = "model"
_LISTS_DEVICES = 14
"""The version of macOS."""


class Identity(NamedTuple):
    """SHA-256 of names of computing operations, and of weights: as of what is compiled."""

    operations: str
    weights: str


def identity(model: MLModel) -> Identity:
    names = [(f, scope, op.name) for f, scope, op in walk(model) if not is_constant(op.op)]
    folder = Path(model.weights)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    weights = [(file.name, file_digest(file)) for file in files if file.is_file()]
    return Identity(key_digest(names), key_digest(weights))


def read_identity(path: str) -> Identity | None:
    try:
        return identity(read_model(path, weights=False))
    except AneError:
        return None


def _key(path: str) -> Callable[..., str | None]:
    """A digest of predictions by function, units, inputs and state; None of what is not known."""
    model = read_identity(path) if path else None

    def key(function: str, units: str, data: Arrays, state: str | None) -> str | None:
        arrays = {name: np.asarray(value) for name, value in data.items()}
        if model is None or any(array.dtype.hasobject for array in arrays.values()):
            return None
        return key_digest([*model, function, units, array_digests(arrays), state])

    return key


class Recording:
    """A folder of recorded answers: `plans/*.json` and `values/*.safetensors`."""

    def __init__(self, folder: Path) -> None:
        self._plans, self._values = folder / "plans", folder / "values"
        self._turns: Counter[tuple[Identity, str]] = Counter()

    def write_plan(self, model: Identity, plan: Plan) -> None:
        self._plans.mkdir(parents=True, exist_ok=True)
        data = coremltools.write(replace(plan, extra={**plan.extra, _MODEL: model._asdict()}))
        text = json.dumps(data, indent=1) + "\n"
        file = self._plans / f"{len(list(self._plans.glob('*.json'))):05}.json"
        write_atomically(file, text.encode())

    def usages(self, path: str, model: MLModel, units: str) -> dict[Operation, Usage] | None:
        """A model's next plan, the last one for ever; None without any, else `RecordingError`."""
        if not self._recorded:
            return None
        wanted = identity(model), units
        same = [plan for of, plan in self._recorded if (of, plan.compute_units) == wanted]
        if not same:
            raise RecordingError(
                f"{path}: the recording has no plan of this model with {units}; record it again."
            )
        self._turns[wanted] += 1
        return _usages(model, same[min(self._turns[wanted], len(same)) - 1])

    def write_values(self, key: str, values: Arrays) -> bool:
        from safetensors.numpy import save

        arrays = {name: np.asarray(value) for name, value in values.items()}
        if any(array.dtype.kind not in "biuf" for array in arrays.values()):
            return False
        self._values.mkdir(parents=True, exist_ok=True)
        ready = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomically(self._values / f"{key}.safetensors", save(ready))
        return True

    def values(self, key: str) -> dict[str, Any] | None:
        """The arrays under a digest, if there are any; `RecordingError` where they are damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = self._values / f"{key}.safetensors"
        try:
            return load(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise RecordingError(f"{file}: is damaged ({error}); record it again.") from None

    @cached_property
    def _recorded(self) -> list[tuple[Identity, Plan]]:
        return [_plan(file) for file in sorted(self._plans.glob("*.json"))]


def _plan(file: Path) -> tuple[Identity, Plan]:
    try:
        plan = read_plan(file)
        return Identity(**plan.extra[_MODEL]), plan
    except PlanError as error:
        raise RecordingError(str(error)) from None
    except (KeyError, TypeError):
        raise RecordingError(f"{file}: does not say of which model it is; record again.") from None


def _usages(model: MLModel, plan: Plan) -> dict[Operation, Usage]:
    planned = grouped(((name, e.scope, e.name, e.op), e) for name, e in plan.walk())
    usages = {}
    for function, scope, operation in walk(model):
        # What has no outputs, such as `write_state`, has no name, and comes in the file's order.
        name = operation.name if operation.outputs else ""
        entries = planned.get((function, scope, name, operation.op))
        match = entries.pop(0) if entries else None
        if match is not None and match.preferred is not None:
            usages[operation] = Usage(match.preferred, match.supported, match.cost)
    return usages


class Log:
    """Keeps what Core ML answers; errors each after as many answers of its kind as came before."""

    def __init__(self, folder: Path) -> None:
        self.failures: list[Failure] = []
        self.predicted = False
        self.skipped: list[str] = []
        self.key = _key
        self._recording = Recording(folder)
        self._counts: Counter[str] = Counter()

    def answer(self, question: Question, ask: Callable[[], Any]) -> Any:
        at, path = question.at, question.path
        after = self._counts[at]
        self._counts[at] += 1
        try:
            answer = ask()
        except RuntimeError as error:
            if at != "read" and at != "devices":
                message = str(error).replace(path, "{path}") if path else str(error)
                self.failures.append(Failure(at, message, after=after))
            raise
        if at == "plan":
            self._keep_plan(answer, path, question.units)
        elif at in ("predict", "read"):
            values = answer if at == "predict" else {VALUE: answer}
            if question.key is not None and self._recording.write_values(question.key, values):
                self.predicted = True
            else:
                self.skipped.append(f"{path}: a prediction of more than arrays is not kept.")
        return answer

    def _keep_plan(self, plan: Any, path: str, units: str) -> None:
        if (model := read_identity(path)) is None:
            self.skipped.append(f"{path}: its plan is not kept; it cannot be read as a program.")
            return
        try:
            self._recording.write_plan(model, to_record(plan, units, path))
        except ExecutionError as error:
            self.skipped.append(str(error))


class Replay:
    """Answers of the recording, the script, else the executor; children share the folder."""

    def __init__(self, script: Script, folder: Path, recording: Recording | None) -> None:
        self._script, self._recording = script, recording
        self._failures = Failures(script, folder)
        self._paths = folder / "planned"
        self._leaked: list[bytes] = []

    def key(self, path: str) -> Callable[..., str | None] | None:
        return _key(path) if self._recording else None

    def answer(self, question: Question, ask: Callable[[], Any]) -> Any:
        """The Mac's answer; `RuntimeError` of a due failure, `RecordingError` of none recorded."""
        path = question.path
        if question.at == "plan" and Path(path).suffix != ".mlmodelc":
            raise RuntimeError(
                f"{path} is not compiled; Core ML would end this process. Compile it first."
            )
        if question.at in ("load", "plan", "predict", "state"):
            self._failures.raise_due(question.at, path)
        if question.at in ("load", "plan"):
            # Written, so that it is resident.
            self._leaked.append(b"\1" * self._script.leak)
        match question.at:
            case "compile":
                with _native.new_compiled() as target:
                    return compile_model(Path(path), target, self._script, self._failures)
            case "plan":
                model, cores = read_model(path, weights=False), self._script.machine.cores
                usages = self._usages(path, model, question.units)
                return compute_plan(model.program, usages.get, cores)
            case "devices":
                machine = self._script.machine
                if int(machine.os.partition(".")[0]) < _LISTS_DEVICES:
                    raise RuntimeError("MLComputeDevice is only available on macOS >= 14.0")
                kinds = devices(machine.cores)
                return [kinds[name] for name in kinds if name != "ANE" or machine.cores]
            case "predict" | "read":
                return self._values(question, ask)
        return ask()

    def _values(self, question: Question, ask: Callable[[], Any]) -> Any:
        state, predicts = question.state, question.at == "predict"
        if arrays := self._recording and question.key and self._recording.values(question.key):
            if state is not None and predicts:
                state.played = True
            return arrays if predicts else arrays[VALUE]
        if (state is not None and state.played) or not self._script.compute:
            raise RecordingError(
                f"{question.path}: the recording does not have this prediction; record it again, "
                "or let the executor compute all of them."
            )
        answer = ask()
        return {name: _as_read(value) for name, value in answer.items()} if predicts else answer

    def _usages(self, path: str, model: MLModel, units: str) -> dict[Operation, Usage]:
        if self._is_broken(path):
            return {}
        recorded = self._recording.usages(path, model, units) if self._recording else None
        return by_rules(self._script, model, units) if recorded is None else recorded

    def _is_broken(self, path: str) -> bool:
        resolved = str(Path(path).resolve())
        paths = self._paths.read_text().splitlines() if self._paths.exists() else []
        if resolved not in paths:
            paths.append(resolved)
            self._paths.write_text("\n".join(paths))
        return paths.index(resolved) < self._script.unassigned_paths


def _as_read(value: Any) -> Any:
    """As coremlpython's `sizeOfArrayElement` has it: int8 in strides of 8, and then zeros."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int8:
        return value
    read = np.zeros(value.size, np.int8)
    every = value.reshape(-1)[::8]
    read[: every.size] = every
    return read.reshape(value.shape)
