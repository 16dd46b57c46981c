"""A session: a program prepared once, and run many times.

Preparing resolves names to numbered slots, folds constants and `constexpr_*` weights, binds every
operation's constant parameters, and notes when each value is used for the last time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.errors import ExecutionError
from pytest_ane.mil.records import DType, Model, Operation, Ref, TensorType
from pytest_ane.reference.constants import constant
from pytest_ane.reference.dtypes import Precision, settle
from pytest_ane.reference.interface import bind_inputs
from pytest_ane.reference.registry import FAILURES, lookup

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Step:
    """One operation ready to run: slots of its varying inputs and of its outputs."""

    name: str
    compute: Any
    inputs: tuple[tuple[str, int | tuple[int, ...]], ...]
    outputs: tuple[tuple[int, DType], ...]
    moves: bool
    last_use: tuple[int, ...]


class Session:
    """Runs a model's main function.

    Args:
        model: a package as `mil.read_model` gives it.
        precision: `as-typed` rounds fp16 results to fp16; `float32` never rounds.

    Raises:
        ExecutionError: an operation that is not implemented.
    """

    def __init__(self, model: Model, precision: Precision = "as-typed") -> None:
        self.model = model
        self.precision = precision
        function = model.program.main
        self._opset = function.opset
        self._slots: dict[str, int] = {}
        self._constants: dict[str, Any] = {}
        self._presets: dict[int, Any] = {}
        for named in function.inputs:
            self._slot(named.name)
        operations = [op for op in function.block.operations if not self._fold(op)]
        last = _last_uses(operations, function.block.outputs)
        self._steps = [self._step(op, last.get(i, ())) for i, op in enumerate(operations)]

    def predict(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once.

        Args:
            inputs: every declared input by name, of the declared type and an allowed shape.
            outputs: names to return, intermediates too; None for the declared outputs.

        Returns:
            Arrays by name; fp16 tensors as float32 holding fp16 numbers.

        Raises:
            ExecutionError: an input is missing, unknown, or of another dtype, rank or shape.
        """
        names = tuple(self.model.program.main.block.outputs if outputs is None else outputs)
        keep = {self._slots[name] for name in names if name in self._slots}
        values: list[Any] = [None] * len(self._slots)
        for slot, array in self._presets.items():
            values[slot] = array
        for name, array in bind_inputs(self.model, inputs, self.precision).items():
            values[self._slots[name]] = array
        with np.errstate(all="ignore"):
            for step in self._steps:
                self._run(step, values, keep)
        return {name: self._result(name, values) for name in names}

    def _run(self, step: _Step, values: list[Any], keep: set[int]) -> None:
        varying = {
            key: values[slot] if isinstance(slot, int) else tuple(values[s] for s in slot)
            for key, slot in step.inputs
        }
        try:
            result = step.compute(**varying)
        except FAILURES as error:
            shapes = {k: getattr(v, "shape", None) for k, v in varying.items()}
            raise ExecutionError(
                f"{self.model.path}: {step.name} fails on inputs {shapes}: {error}."
            ) from error
        results = result if isinstance(result, tuple) else (result,)
        for (slot, dtype), array in zip(step.outputs, results, strict=True):
            values[slot] = settle(array, dtype, self.precision, step.moves)
        for slot in step.last_use:
            if slot not in keep:
                values[slot] = None

    def _result(self, name: str, values: list[Any]) -> Array:
        if name in self._constants:
            return np.asarray(self._constants[name])
        if name not in self._slots:
            raise ExecutionError(
                f"{self.model.path}: no value {name!r}; outputs are: "
                f"{', '.join(self.model.program.main.block.outputs)}."
            )
        return np.asarray(values[self._slots[name]])

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _fold(self, op: Operation) -> bool:
        """Compute an operation now if it is constant; whether it was."""
        if op.op == "const":
            self._constants[op.name] = constant(self.model, op.attributes["val"])
        elif op.op.startswith("constexpr_"):
            where = f"{self.model.path}: {op.name}: "
            compute = lookup(op.op, self._opset, where).compute
            parameters = {
                k: constant(self.model, v) for k, v in op.attributes.items() if k != "name"
            }
            parameters |= {k: self._argument(a[0]) for k, a in op.inputs.items()}
            try:
                with np.errstate(all="ignore"):
                    results = compute(**parameters)
            except FAILURES as error:
                raise ExecutionError(
                    f"{self.model.path}: {op.op} {op.name!r} cannot be expanded: {error}."
                ) from error
            for out, result in zip(op.outputs, _tuple(results), strict=True):
                kind = out.type
                assert isinstance(kind, TensorType)
                self._constants[out.name] = settle(result, kind.dtype, self.precision, False)
        else:
            return False
        return True

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self._constants[argument.name]
        return constant(self.model, argument)

    def _step(self, op: Operation, last_use: tuple[str, ...]) -> _Step:
        found = lookup(op.op, self._opset, f"{self.model.path}: {op.name}: ")
        bound: dict[str, Any] = {}
        varying: list[tuple[str, int | tuple[int, ...]]] = []
        for key, arguments in op.inputs.items():
            if any(isinstance(a, Ref) and a.name not in self._constants for a in arguments):
                slots = tuple(self._source(a) for a in arguments)
                varying.append((key, slots if len(arguments) > 1 or key == "values" else slots[0]))
            else:
                parts = tuple(self._argument(a) for a in arguments)
                bound[key] = parts if len(parts) > 1 or key == "values" else parts[0]
        outputs = tuple((self._slot(out.name), _dtype(op, out.type)) for out in op.outputs)
        compute = partial(found.compute, **bound)
        frees = tuple(self._slots[name] for name in last_use)
        return _Step(f"{op.op} {op.name!r}", compute, tuple(varying), outputs, found.moves, frees)

    def _source(self, argument: Any) -> int:
        """The slot of a varying argument; a constant beside varying ones gets a slot of its own."""
        if isinstance(argument, Ref) and argument.name not in self._constants:
            return self._slots[argument.name]
        slot = self._slot(argument.name if isinstance(argument, Ref) else f"#{len(self._slots)}")
        self._presets[slot] = np.asarray(self._argument(argument))
        return slot


def eval_op(name: str, *, opset: str = "iOS18", **parameters: Any) -> Any:
    """Run one operation without a program, in float32: `eval_op("softmax", x=x, axis=-1)`.

    Raises:
        ExecutionError: the operation is not implemented, or fails on these parameters.
    """
    compute = lookup(name, opset).compute
    try:
        with np.errstate(all="ignore"):
            return compute(**parameters)
    except FAILURES as error:
        raise ExecutionError(f"{name} fails: {error}.") from error


def _last_uses(
    operations: Sequence[Operation], outputs: Sequence[str]
) -> dict[int, tuple[str, ...]]:
    """By operation index, the names no later operation needs."""
    last: dict[str, int] = {}
    for i, op in enumerate(operations):
        for out in op.outputs:
            last[out.name] = i
        for arguments in op.inputs.values():
            for a in arguments:
                if isinstance(a, Ref) and a.name in last:
                    last[a.name] = i
    found: dict[int, tuple[str, ...]] = {}
    for name, i in last.items():
        if name not in outputs:
            found[i] = (*found.get(i, ()), name)
    return found


def _dtype(op: Operation, kind: Any) -> DType:
    if not isinstance(kind, TensorType):
        raise ExecutionError(f"{op.op} {op.name!r} returns {kind}, which is not a tensor.")
    return kind.dtype


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
