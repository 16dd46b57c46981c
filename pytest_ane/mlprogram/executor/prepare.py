"""From a function's records to steps: names become slots, constants are folded and bound."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._registry import FAILURES, lookup
from pytest_ane.mlprogram.executor._steps import (
    Compute,
    Cond,
    Outputs,
    PreparedBlock,
    Step,
    WhileLoop,
    join_axis,
)
from pytest_ane.mlprogram.executor.budget import Budget, current_budget
from pytest_ane.mlprogram.executor.dtypes import Precision, converter, itemsize
from pytest_ane.mlprogram.executor.folding import SEQUENCES, Constants, dense
from pytest_ane.mlprogram.executor.weights import HalfWeight
from pytest_ane.mlprogram.records import (
    Argument,
    Block,
    MLModel,
    Named,
    Operation,
    Ref,
    TensorType,
)

if TYPE_CHECKING:
    from pytest_ane.mlprogram.executor.ane.simulation import Simulation

T = TypeVar("T")

_STREAMABLE = frozenset((("conv", "weight"), ("linear", "weight")))
"""Parameters that take a weight which is decoded while it is multiplied."""


class Preparer:
    """Prepares a model's chosen function; arguments as of `Session`.

    Attributes:
        block: its steps.
        slots: slots of its own values by name.
        constants: constants and all that follows from them.
        template: values of all slots before the first step.
    """

    def __init__(
        self,
        model: MLModel,
        precision: Precision,
        memory_budget: int | None = None,
        overrides: Mapping[Operation, Any] | None = None,
        budget: Budget | None = None,
        simulation: Simulation | None = None,
    ) -> None:
        self._simulation = simulation
        function = model.main
        self._path, self._opset, self._precision = model.path, function.opset, precision
        self.slots: ChainMap[str, int] = ChainMap()
        self.constants = Constants(
            model, function.opset, precision, memory_budget, overrides, _factors(function.block),
            current_budget() if budget is None else budget,
        )  # fmt: skip
        self.template: list[Any] = []
        self.block = self._block(function.block, function.inputs)

    def _block(self, block: Block, inputs: Sequence[Named]) -> PreparedBlock:
        """A block's steps; its names are added to the innermost scope."""
        entries = tuple(self._slot(named.name) for named in inputs)
        self.constants.hide(named.name for named in inputs)
        operations = [op for op in block.operations if not self._fold(op)]
        last = _last_uses(operations, block.outputs)
        steps = tuple(
            self._guarded(self._step, op, last.get(i, ())) for i, op in enumerate(operations)
        )
        results = tuple(self._source(Ref(name)) for name in block.outputs)
        return PreparedBlock(entries, steps, results)

    def _fold(self, op: Operation) -> bool:
        if self._guarded(self.constants.fold, op):
            return True
        self.constants.hide(out.name for out in op.outputs)
        return False

    def _guarded(self, prepare: Callable[..., T], op: Operation, *rest: Any) -> T:
        """`prepare(op, *rest)`; its failures are the operation's, which may lack what it needs."""
        try:
            return prepare(op, *rest)
        except FAILURES as error:
            raise ExecutionError(
                f"{self._path}: {op.op} {op.name!r} cannot be prepared ({error!r:.200})."
            ) from error

    def _nested(self, op: Operation) -> list[PreparedBlock]:
        """An operation's blocks, which see the names around them."""
        blocks = []
        for block in op.blocks:
            outer, self.slots = self.slots, self.slots.new_child()
            with self.constants.scope():
                blocks.append(self._block(block, block.inputs))
            self.slots = outer
        return blocks

    def _slot(self, name: str) -> int:
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
        blocks = self._nested(op)
        if len(blocks) != 2 or any(len(b.results) != len(op.outputs) for b in blocks):
            raise ExecutionError(
                f"{self._path}: {op.name}: cond needs two blocks of {len(op.outputs)} results."
            )
        pred, outputs = self._source(op.inputs["pred"][0]), self._outputs(op)
        branches = (blocks[0], blocks[1])
        return Cond(pred, branches, outputs, self._precision, self._slots(last_use))

    def _while_loop(self, op: Operation, last_use: Sequence[str]) -> WhileLoop:
        initial = tuple(self._source(a) for a in op.inputs["loop_vars"])
        blocks = self._nested(op)
        sizes = [(len(b.inputs), len(b.results)) for b in blocks]
        count = len(initial)
        if sizes != [(count, 1), (count, count)] or len(op.outputs) != count:
            raise ExecutionError(
                f"{self._path}: {op.name}: while_loop needs a condition and a body of its {count} "
                "variables, and as many results."
            )
        outputs, last = self._outputs(op), self._slots(last_use)
        what = f"{self._path}: while_loop {op.name!r}"
        condition, body = blocks
        return WhileLoop(what, initial, condition, body, outputs, self._precision, last)

    def _compute(self, op: Operation, last_use: Sequence[str]) -> Compute:
        implementation = lookup(op.op, self._opset, f"{self._path}: {op.name}: ")
        constants: dict[str, Any] = {}
        computed: list[tuple[str, int | tuple[int, ...]]] = []
        for key, arguments in op.inputs.items():
            if all(a in self.constants for a in arguments):
                stream = (op.op, key) in _STREAMABLE
                constants[key] = self.constants.parameter(key, arguments, stream=stream)
            else:
                slots = tuple(self._source(a) for a in arguments)
                several = len(slots) > 1 or key in SEQUENCES
                computed.append((key, slots if several else slots[0]))
        joins = join_axis(op, constants)
        moves, compute = implementation.moves, implementation.compute
        if self._simulation is not None and not moves:
            compute = self._simulation.bind(op, compute, constants, self.constants.parameters)
        if joins is None and isinstance(weight := constants.get("weight"), HalfWeight):
            constants["weight"] = dense(weight)
        return Compute(
            op=op.op,
            what=f"{self._path}: {op.op} {op.name!r}",
            compute=partial(compute, **constants),
            inputs=tuple(computed),
            outputs=self._outputs(op),
            converters=tuple(converter(out.type, self._precision, moves) for out in op.outputs),
            last_use=self._slots(last_use),
            itemsize=itemsize((out.type for out in op.outputs), self._precision),
            joins=joins,
        )

    def _outputs(self, op: Operation) -> Outputs:
        return tuple((self._slot(out.name), out.type) for out in op.outputs)

    def _slots(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.slots[name] for name in names)

    def _source(self, argument: Argument) -> int:
        """A value's slot; a constant that is needed in one gets a slot of its own."""
        if isinstance(argument, Ref) and argument not in self.constants:
            return self.slots[argument.name]
        self.template.append(dense(self.constants.value(argument)))
        return len(self.template) - 1


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
        arguments = op.inputs.get("weight", ()) if (op.op, "weight") in _STREAMABLE else ()
        weight = flat & {a.name for a in arguments if isinstance(a, Ref)}
        factors |= weight
        others |= set(uses(op)) - weight
    return frozenset(factors - others)


def _last_uses(
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
    names: dict[int, list[str]] = {}
    results = frozenset(outputs)
    for name, i in last.items():
        if name not in results:
            names.setdefault(i, []).append(name)
    return names


def uses(op: Operation) -> Iterable[str]:
    """Names an operation refers to, in its blocks too."""
    for arguments in op.inputs.values():
        yield from (a.name for a in arguments if isinstance(a, Ref))
    for block in op.blocks:
        yield from block.outputs
        for nested in block.operations:
            yield from uses(nested)
