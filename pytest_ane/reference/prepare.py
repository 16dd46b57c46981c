"""From a function's records to a plan: names become slots, constants are folded and bound."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pytest_ane.errors import ExecutionError
from pytest_ane.mil.records import (
    Argument,
    Block,
    Function,
    Model,
    Named,
    Operation,
    Ref,
    TensorType,
)
from pytest_ane.reference.constants import constant
from pytest_ane.reference.dtypes import Precision
from pytest_ane.reference.registry import FAILURES, lookup
from pytest_ane.reference.steps import Compute, Cond, Plan, Step, WhileLoop, settled

_SEQUENCES = frozenset(
    ("values", "loop_vars", "elem_shape", "ref_tensors", "begins", "ends", "end_masks")
)
"""Parameters that are lists of values, however many there are."""
_KEPT = frozenset(("make_list", "random_bernoulli", "random_categorical", "random_normal",
                   "random_uniform", "read_state", "write_state"))  # fmt: skip
"""Operations that are run every time, constant or not."""
_LARGEST_FOLD = 1 << 20
"""Elements of a result that is worth keeping beside the constants it was computed from."""


class Preparer:
    """Prepares one function of a model.

    Attributes:
        slots: slots of the function's own values by name.
        constants: constants and all that was computed from them, by name.
        template: what each slot holds before the first operation.

    Raises:
        ExecutionError: an operation is not implemented, or a constant cannot be expanded.
    """

    def __init__(self, model: Model, function: Function, precision: Precision) -> None:
        self._model = model
        self._opset = function.opset
        self._precision = precision
        self.slots: ChainMap[str, int] = ChainMap()
        self.constants: ChainMap[str, Any] = ChainMap()
        self.template: list[Any] = []
        self.plan = self.block(function.block, function.inputs)

    def block(self, block: Block, inputs: Sequence[Named]) -> Plan:
        """A block's plan; its names are added to the innermost scope."""
        entries = tuple(self._slot(named.name) for named in inputs)
        operations = [op for op in block.operations if not self._fold(op)]
        last = _last_uses(operations, block.outputs)
        steps = tuple(self._step(op, last.get(i, ())) for i, op in enumerate(operations))
        return Plan(entries, steps, tuple(self._source(Ref(name)) for name in block.outputs))

    def _nested(self, block: Block) -> Plan:
        slots, constants = self.slots, self.constants
        self.slots, self.constants = slots.new_child(), constants.new_child()
        plan = self.block(block, block.inputs)
        self.slots, self.constants = slots, constants
        return plan

    def _slot(self, name: str) -> int:
        """A new slot, under this name in the innermost scope."""
        self.template.append(None)
        self.slots[name] = len(self.template) - 1
        return self.slots[name]

    def _fold(self, op: Operation) -> bool:
        """Compute an operation now if it is constant; whether it was."""
        if op.op == "const":
            self.constants[op.name] = constant(self._model, op.attributes["val"], self._precision)
            return True
        always = op.op.startswith("constexpr_")
        if not always and not (self._is_constant(op) and _is_small(op)):
            return False
        found = lookup(op.op, self._opset, self._where(op))
        parameters = {key: self._bound(key, args) for key, args in op.inputs.items()}
        if always:
            parameters |= self._attributes(op)
        try:
            with np.errstate(all="ignore"):
                results = found.compute(**parameters)
        except FAILURES as error:
            raise ExecutionError(
                f"{self._model.path}: {op.op} {op.name!r} cannot be expanded: {error}."
            ) from error
        for out, result in zip(op.outputs, _tuple(results), strict=True):
            self.constants[out.name] = settled(result, out.type, self._precision, found.moves)
        return True

    def _attributes(self, op: Operation) -> dict[str, Any]:
        return {
            key: constant(self._model, value, self._precision)
            for key, value in op.attributes.items()
            if key != "name"
        }

    def _is_constant(self, op: Operation) -> bool:
        if op.op in _KEPT or op.blocks:
            return False
        return all(
            not isinstance(a, Ref) or a.name in self.constants
            for arguments in op.inputs.values()
            for a in arguments
        )

    def _step(self, op: Operation, last_use: tuple[str, ...]) -> Step:
        frees = tuple(self.slots[name] for name in last_use if name in self.slots)
        if op.op == "cond":
            branches = [self._nested(block) for block in op.blocks]
            if len(branches) != 2:
                raise ExecutionError(f"{self._where(op)}cond needs two blocks.")
            pred = self._source(op.inputs["pred"][0])
            return Cond(pred, (branches[0], branches[1]), self._outputs(op), frees)
        if op.op == "while_loop":
            initial = tuple(self._source(a) for a in op.inputs["loop_vars"])
            plans = [self._nested(block) for block in op.blocks]
            if len(plans) != 2 or any(len(p.inputs) != len(initial) for p in plans):
                raise ExecutionError(
                    f"{self._where(op)}while_loop needs two blocks of its {len(initial)} variables."
                )
            return WhileLoop(initial, plans[0], plans[1], self._outputs(op), frees)
        return self._compute(op, last_use)

    def _compute(self, op: Operation, last_use: tuple[str, ...]) -> Compute:
        found = lookup(op.op, self._opset, self._where(op))
        bound: dict[str, Any] = {}
        varying: list[tuple[str, int | tuple[int, ...]]] = []
        for key, arguments in op.inputs.items():
            if any(isinstance(a, Ref) and a.name not in self.constants for a in arguments):
                slots = tuple(self._source(a) for a in arguments)
                several = len(slots) > 1 or key in _SEQUENCES
                varying.append((key, slots if several else slots[0]))
            else:
                bound[key] = self._bound(key, arguments)
        outputs = tuple(zip(self._outputs(op), (out.type for out in op.outputs), strict=True))
        return Compute(
            what=f"{self._model.path}: {op.op} {op.name!r}",
            compute=partial(found.compute, **bound),
            inputs=tuple(varying),
            outputs=outputs,
            precision=self._precision,
            moves=found.moves,
            last_use=tuple(self.slots[name] for name in last_use),
        )

    def _outputs(self, op: Operation) -> tuple[int, ...]:
        return tuple(self._slot(out.name) for out in op.outputs)

    def _bound(self, key: str, arguments: Sequence[Argument]) -> Any:
        parts = tuple(self._constant(a) for a in arguments)
        return parts if len(parts) > 1 or key in _SEQUENCES else parts[0]

    def _constant(self, argument: Argument) -> Any:
        if isinstance(argument, Ref):
            return self.constants[argument.name]
        return constant(self._model, argument, self._precision)

    def _source(self, argument: Argument) -> int:
        """A value's slot; a constant that is needed in one gets a slot of its own."""
        if isinstance(argument, Ref) and argument.name not in self.constants:
            return self.slots[argument.name]
        self.template.append(self._constant(argument))
        return len(self.template) - 1

    def _where(self, op: Operation) -> str:
        return f"{self._model.path}: {op.name}: "


def _last_uses(
    operations: Sequence[Operation], outputs: Sequence[str]
) -> Mapping[int, tuple[str, ...]]:
    """By operation index, the names of this block that no later operation needs."""
    last: dict[str, int] = {}
    for i, op in enumerate(operations):
        for out in op.outputs:
            last[out.name] = i
        for name in _uses(op):
            if name in last:
                last[name] = i
    found: dict[int, tuple[str, ...]] = {}
    for name, i in last.items():
        if name not in outputs:
            found[i] = (*found.get(i, ()), name)
    return found


def _uses(op: Operation) -> Iterable[str]:
    """Names an operation refers to, in its blocks too."""
    for arguments in op.inputs.values():
        yield from (a.name for a in arguments if isinstance(a, Ref))
    for block in op.blocks:
        yield from block.outputs
        for nested in block.operations:
            yield from _uses(nested)


def _is_small(op: Operation) -> bool:
    kinds = [out.type for out in op.outputs]
    return all(
        isinstance(kind, TensorType)
        and all(d is not None for d in kind.shape)
        and math.prod(d or 0 for d in kind.shape) <= _LARGEST_FOLD
        for kind in kinds
    )


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
