"""From a function's records to a plan: names become slots, constants are folded and bound."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import Argument, Block, MLModel, Named, Operation, Ref, TensorType
from pytest_ane.reference.dtypes import Precision, rounded, rounding
from pytest_ane.reference.folding import SEQUENCES, Constants, dense
from pytest_ane.reference.halves import HalfWeight
from pytest_ane.reference.lockstep import join_axis
from pytest_ane.reference.registry import FAILURES, Implementation, lookup
from pytest_ane.reference.steps import Compute, Cond, Outputs, Plan, Step, WhileLoop, settling

T = TypeVar("T")

_STREAMABLE = frozenset((("conv", "weight"), ("linear", "weight")))
"""Parameters that take a weight which is decoded while it is multiplied."""


class Preparer:
    """Prepares a model's chosen function.

    Attributes:
        slots: slots of the function's own values by name.
        constants: constants and all that follows from them.
        template: what each slot holds before the first operation.

    Raises:
        ExecutionError: an operation is not implemented, lacks what it needs, or a constant cannot
            be computed.
    """

    def __init__(
        self,
        model: MLModel,
        precision: Precision,
        memory_budget: int | None = None,
        given: Mapping[Operation, Any] | None = None,
    ) -> None:
        function = model.main
        self._path, self._opset, self._precision = model.path, function.opset, precision
        self.slots: ChainMap[str, int] = ChainMap()
        self.constants = Constants(
            model, function.opset, precision, memory_budget, given, _factors(function.block)
        )
        self.template: list[Any] = []
        self.plan = self._block(function.block, function.inputs)

    def _block(self, block: Block, inputs: Sequence[Named]) -> Plan:
        """A block's plan; its names are added to the innermost scope."""
        entries = tuple(self._slot(named.name) for named in inputs)
        self.constants.hide(named.name for named in inputs)
        operations = [op for op in block.operations if not self._fold(op)]
        last = _lastuses(operations, block.outputs)
        steps = tuple(
            self._sound(self._step, op, last.get(i, ())) for i, op in enumerate(operations)
        )
        results = tuple(self._source(Ref(name)) for name in block.outputs)
        return Plan(entries, steps, results)

    def _fold(self, op: Operation) -> bool:
        if self._sound(self.constants.fold, op):
            return True
        self.constants.hide(out.name for out in op.outputs)
        return False

    def _sound(self, prepare: Callable[..., T], op: Operation, *rest: Any) -> T:
        """What `prepare` makes of an operation; what it then lacks is the operation's fault."""
        try:
            return prepare(op, *rest)
        except FAILURES as error:
            raise ExecutionError(
                f"{self._path}: {op.op} {op.name!r} cannot be prepared ({error!r:.200})."
            ) from error

    def _nested(self, op: Operation) -> list[Plan]:
        """Plans of an operation's blocks, which see the names around them."""
        plans = []
        for block in op.blocks:
            outer, self.slots = self.slots, self.slots.new_child()
            with self.constants.scope():
                plans.append(self._block(block, block.inputs))
            self.slots = outer
        return plans

    def _slot(self, name: str) -> int:
        """A new slot, under this name in the innermost scope."""
        self.template.append(None)
        self.slots[name] = len(self.template) - 1
        return self.slots[name]

    def _step(self, op: Operation, last_use: Sequence[str]) -> Step:
        if op.op == "cond":
            return self._cond(op, last_use)
        if op.op == "while_loop":
            return self._while_loop(op, last_use)
        return self._compute(op, last_use)

    def _cond(self, op: Operation, last_use: Sequence[str]) -> Cond:
        plans = self._nested(op)
        if len(plans) != 2 or any(len(p.results) != len(op.outputs) for p in plans):
            raise ExecutionError(
                f"{self._path}: {op.name}: cond needs two blocks of {len(op.outputs)} results."
            )
        pred, outputs = self._source(op.inputs["pred"][0]), self._outputs(op)
        both = (plans[0], plans[1])
        return Cond(pred, both, outputs, self._precision, self._freed(last_use))

    def _while_loop(self, op: Operation, last_use: Sequence[str]) -> WhileLoop:
        initial = tuple(self._source(a) for a in op.inputs["loop_vars"])
        plans = self._nested(op)
        sizes = [(len(p.inputs), len(p.results)) for p in plans]
        count = len(initial)
        if sizes != [(count, 1), (count, count)] or len(op.outputs) != count:
            raise ExecutionError(
                f"{self._path}: {op.name}: while_loop needs a condition and a body of its {count} "
                "variables, and as many results."
            )
        outputs, freed = self._outputs(op), self._freed
        return WhileLoop(initial, plans[0], plans[1], outputs, self._precision, freed(last_use))

    def _compute(self, op: Operation, last_use: Sequence[str]) -> Compute:
        found = lookup(op.op, self._opset, f"{self._path}: {op.name}: ")
        bound: dict[str, Any] = {}
        varying: list[tuple[str, int | tuple[int, ...]]] = []
        for key, arguments in op.inputs.items():
            if all(a in self.constants for a in arguments):
                stream = (op.op, key) in _STREAMABLE
                bound[key] = self.constants.bound(key, arguments, stream=stream)
            else:
                slots = tuple(self._source(a) for a in arguments)
                several = len(slots) > 1 or key in SEQUENCES
                varying.append((key, slots if several else slots[0]))
        joins = join_axis(op, bound)
        if joins is None and isinstance(weight := bound.get("weight"), HalfWeight):
            bound["weight"] = dense(weight)
        settle = tuple(settling(out.type, self._precision, found.moves) for out in op.outputs)
        rounds = settle == (rounded,)
        direct = _direct(found, bound, dict(varying))
        if direct and rounds and (at_once := rounding(direct[0])) is not None:
            direct, settle = (at_once, direct[1]), (np.asarray,)
        return Compute(
            what=f"{self._path}: {op.op} {op.name!r}",
            compute=partial(found.compute, **bound),
            inputs=tuple(varying),
            outputs=self._outputs(op),
            settle=settle,
            last_use=self._freed(last_use),
            joins=joins,
            rounds=rounds,
            direct=direct,
        )

    def _outputs(self, op: Operation) -> Outputs:
        return tuple((self._slot(out.name), out.type) for out in op.outputs)

    def _freed(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.slots[name] for name in names)

    def _source(self, argument: Argument) -> int:
        """A value's slot; a constant that is needed in one gets a slot of its own."""
        if isinstance(argument, Ref) and argument not in self.constants:
            return self.slots[argument.name]
        self.template.append(dense(self.constants.of(argument)))
        return len(self.template) - 1


def _direct(
    found: Implementation, bound: Mapping[str, Any], varying: Mapping[str, int | tuple[int, ...]]
) -> tuple[Callable[..., Any], tuple[int, ...]] | None:
    """What an operation comes to once its constants are known, and the slots that it takes."""
    slots = {key: slot for key, slot in varying.items() if isinstance(slot, int)}
    prepared = found.specialized(varying, bound) if len(slots) == len(varying) else None
    if prepared is None:
        return None
    return prepared.function, tuple(slots[name] for name in prepared.names)


def _factors(block: Block) -> frozenset[str]:
    """Names that are only ever the weight of a 1x1 convolution or of a linear layer."""
    flat = {
        out.name
        for op in block.operations
        for out in op.outputs
        if isinstance(out.type, TensorType) and set(out.type.shape[2:]) <= {1}
    }
    factors: set[str] = set()
    others = set(block.outputs)
    for op in block.operations:
        given = op.inputs.get("weight", ()) if (op.op, "weight") in _STREAMABLE else ()
        weight = flat & {a.name for a in given if isinstance(a, Ref)}
        factors |= weight
        others |= set(uses(op)) - weight
    return frozenset(factors - others)


def _lastuses(
    operations: Sequence[Operation], outputs: Sequence[str]
) -> Mapping[int, Sequence[str]]:
    """By operation index, the names of this block that no later operation needs."""
    last: dict[str, int] = {}
    for i, op in enumerate(operations):
        for out in op.outputs:
            last[out.name] = i
        for name in uses(op):
            if name in last:
                last[name] = i
    found: dict[int, list[str]] = {}
    kept = frozenset(outputs)
    for name, i in last.items():
        if name not in kept:
            found.setdefault(i, []).append(name)
    return found


def uses(op: Operation) -> Iterable[str]:
    """Names an operation refers to, in its blocks too."""
    for arguments in op.inputs.values():
        yield from (a.name for a in arguments if isinstance(a, Ref))
    for block in op.blocks:
        yield from block.outputs
        for nested in block.operations:
            yield from uses(nested)
