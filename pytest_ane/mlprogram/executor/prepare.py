"""From a function's records to steps: names become slots, constants are folded and bound.

Constants are read, decoded or left to be streamed; and so is whatever follows from them alone.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pytest_ane.mlprogram.blob import load
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
from pytest_ane.mlprogram.executor.budget import Budget, Meter, current_budget
from pytest_ane.mlprogram.executor.dtypes import Precision, carried, converter, itemsize
from pytest_ane.mlprogram.executor.weights import (
    LARGE,
    HalfWeight,
    StreamedWeight,
    decoded_bytes,
    fits_half,
    palettized,
    plain,
)
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    Block,
    DType,
    MLModel,
    Named,
    Operation,
    Ref,
    TensorType,
    Value,
)

if TYPE_CHECKING:
    from pytest_ane.mlprogram.executor.ane.simulation import Simulation

SEQUENCES = frozenset(("begins", "elem_shape", "end_masks", "ends", "loop_vars", "ref_tensors",
                       "values"))  # fmt: skip
"""Parameters that are lists of values, however many there are."""
_NEVER_FOLDED = frozenset(
    ("make_list", "random_bernoulli", "random_categorical", "random_normal", "random_uniform",
     "read_state", "write_state")
)  # fmt: skip
"""Operations that are run every time, constant or not."""
_HIDDEN: Any = object()
"""Stands for a name that a nested block uses for something that is not constant."""
_LARGEST_FOLD = 1 << 20
"""Elements of a result up to which it is worth keeping beside the constants it follows from."""
_WEIGHTS = frozenset(("const", "constexpr_lut_to_dense"))


class Constants:
    """The constants of a function, by name, nested scopes included; arguments as of `Session`.

    `factors` are names that are only ever weights of matrix products, and so may be held in fp16.

    Attributes:
        values: arrays, Python numbers, texts, or weights to be streamed.
    """

    def __init__(
        self, model: MLModel, opset: str, precision: Precision, memory_budget: int | None,
        overrides: Mapping[Operation, Any] | None = None, factors: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        self.values: ChainMap[str, Any] = ChainMap()
        self._stored: ChainMap[str, Value] = ChainMap()
        self._model, self._opset = model, opset
        self._precision, self._budget = precision, memory_budget
        self._overrides = overrides or {}
        budget = current_budget() if budget is None else budget
        self._meter = Meter(budget, lambda: self.values.values())
        self._factors = () if memory_budget is None or precision == "float64" else factors

    def __contains__(self, argument: Argument) -> bool:
        name = argument.name if isinstance(argument, Ref) else None
        return name is None or self.values.get(name, _HIDDEN) is not _HIDDEN

    def hide(self, names: Iterable[str]) -> None:
        """Take names for computed values from here on, whatever they are in outer scopes."""
        for name in names:
            if name in self.values:
                self.values[name] = _HIDDEN

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Scope for a nested block's names."""
        outer = self.values, self._stored
        self.values, self._stored = self.values.new_child(), self._stored.new_child()
        try:
            yield
        finally:
            self.values, self._stored = outer

    def fold(self, op: Operation) -> bool:
        """Compute an operation now if it is constant; whether it was."""
        if op in self._overrides:
            self.values[op.name] = _read_only(self._overrides[op])
            return True
        if op.op == "const":
            self._stored[op.name] = op.attributes["val"]
        if op.op in _WEIGHTS and self._take_weight(op):
            return True
        if op.op == "const":
            value = op.attributes["val"]
            self.values[op.name] = _read_only(constant(self._model, value, self._precision))
            return True
        if not op.op.startswith("constexpr_") and not (self._is_constant(op) and _is_small(op)):
            return False
        self._compute(op)
        return True

    def value(self, argument: Argument) -> Any:
        """A constant argument's value, which may be a weight to be streamed."""
        if isinstance(argument, Ref):
            return self.values[argument.name]
        return constant(self._model, argument, self._precision)

    def parameter(self, key: str, arguments: Sequence[Argument], *, stream: bool = False) -> Any:
        """A parameter of constants alone; weights are decoded unless `stream`."""
        values = tuple(self.value(a) if stream else dense(self.value(a)) for a in arguments)
        return values if len(values) > 1 or key in SEQUENCES else values[0]

    def _compute(self, op: Operation) -> None:
        implementation = lookup(op.op, self._opset, f"{self._model.path}: {op.name}: ")
        what = f"{self._model.path}: {op.op} {op.name!r}"
        with np.errstate(all="ignore"):
            try:
                parameters = self.parameters(op)
                size = itemsize((out.type for out in op.outputs), self._precision)
                self._meter.admit(what, op.op, parameters, size)
                result = implementation.compute(**parameters)
            except FAILURES as error:
                why = str(error).rstrip(".")
                raise ExecutionError(f"{what} cannot be computed: {why}.") from error
            results = result if isinstance(result, tuple) else (result,)
            for out, array in zip(op.outputs, results, strict=True):
                convert = converter(out.type, self._precision, implementation.moves)
                self.values[out.name] = value = _read_only(convert(array))
                self._meter.add([value])

    def _take_weight(self, op: Operation) -> bool:
        """Take a weight as it is stored, and decode it unless it exceeds the memory budget."""
        wide = carried(DType.FP16, self._precision)
        as_half = op.name in self._factors and fits_half(op)
        dtype = np.float16 if as_half else wide
        is_held = self._spend(decoded_bytes(op, dtype))
        if is_held and op.op == "const" and not as_half:
            return False
        weight = self._streamed(op, dtype if is_held else wide)
        if weight is not None and is_held:
            decoded = _read_only(np.asarray(weight))
            self.values[op.name] = HalfWeight.of(decoded) if as_half else decoded
        elif weight is not None:
            self.values[op.name] = weight
        return weight is not None

    def _streamed(self, op: Operation, dtype: Any) -> StreamedWeight | None:
        """A weight as it is stored; None where it is so that its rows cannot be decoded alone."""
        if op.op == "const":
            return plain(self._model, op.attributes["val"], dtype)
        lut, indices = self.parameters(op, ("lut",))["lut"], op.only("indices")
        stored = self._stored.get(indices.name) if isinstance(indices, Ref) else indices
        return palettized(self._model, stored, lut, dtype)

    def _spend(self, size: int) -> bool:
        """Whether a weight of so many bytes is held; if so, it is taken off the budget."""
        if self._budget is None or size < LARGE:
            return True
        is_held = size <= self._budget
        self._budget -= size if is_held else 0
        return is_held

    def _is_constant(self, op: Operation) -> bool:
        if op.op in _NEVER_FOLDED or op.blocks:
            return False
        return all(a in self for arguments in op.inputs.values() for a in arguments)

    def parameters(self, op: Operation, only: Sequence[str] = ()) -> dict[str, Any]:
        """All parameters of a constant operation, or the constant ones of those named."""
        keys = set(only) or {*op.inputs, *op.attributes} - {"name"}
        inputs = {k: a for k, a in op.inputs.items() if k in keys}
        if only:
            inputs = {k: a for k, a in inputs.items() if all(argument in self for argument in a)}
        parameters = {k: self.parameter(k, a) for k, a in inputs.items()}
        if op.op.startswith("constexpr_"):
            for key in keys & set(op.attributes):
                parameters[key] = constant(self._model, op.attributes[key], self._precision)
        return parameters


def constant(model: MLModel, value: Value, precision: Precision = "as-typed") -> Any:
    """A constant's data: scalars as Python numbers, fp16 as float32, weights decoded."""
    if not isinstance(value.type, TensorType) or isinstance(value.data, (str, tuple, dict)):
        return value.data
    if not isinstance(value.data, Blob) and value.type.shape == ():
        return np.asarray(value.data).item()
    return load(model, value).astype(carried(value.type.dtype, precision), copy=False)


def dense(value: Any) -> Any:
    """A streamed weight decoded as a whole; anything else as it is."""
    return np.asarray(value) if isinstance(value, StreamedWeight) else value


def _read_only(value: Any) -> Any:
    """A constant that no one can write to: results may be views of it."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.view()
        value.flags.writeable = False
    return value


def _is_small(op: Operation) -> bool:
    return all(
        isinstance(out.type, TensorType)
        and all(d is not None for d in out.type.shape)
        and math.prod(d or 0 for d in out.type.shape) <= _LARGEST_FOLD
        for out in op.outputs
    )


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
        self, model: MLModel, precision: Precision, memory_budget: int | None,
        overrides: Mapping[Operation, Any] | None, budget: Budget, simulation: Simulation | None,
    ) -> None:  # fmt: skip
        self._simulation = simulation
        function = model.main
        self._path, self._opset, self._precision = model.path, function.opset, precision
        self.slots: ChainMap[str, int] = ChainMap()
        self.constants = Constants(
            model, function.opset, precision, memory_budget, overrides, _factors(function.block),
            budget,
        )  # fmt: skip
        self.template: list[Any] = []
        self.block = self._block(function.block, function.inputs)

    def _block(self, block: Block, inputs: Sequence[Named]) -> PreparedBlock:
        """A block's steps; its names are added to the innermost scope."""
        entries = tuple(self._slot(named.name) for named in inputs)
        self.constants.hide(named.name for named in inputs)
        operations = [op for op in block.operations if not self._fold(op)]
        last, step = _last_uses(operations, block.outputs), self._step
        steps = tuple(self._guarded(step, op, last.get(i, ())) for i, op in enumerate(operations))
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
            says = f"{op.op} {op.name!r} cannot be prepared ({error!r:.200})"
            raise ExecutionError(f"{self._path}: {says}.") from error

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
        if [len(b.results) for b in blocks] != [len(op.outputs)] * 2:
            says = f"cond needs two blocks of {len(op.outputs)} results"
            raise ExecutionError(f"{self._path}: {op.name}: {says}.")
        pred, outputs = self._source(op.inputs["pred"][0]), self._outputs(op)
        return Cond(pred, (blocks[0], blocks[1]), outputs, self._precision, self._slots(last_use))

    def _while_loop(self, op: Operation, last_use: Sequence[str]) -> WhileLoop:
        initial = tuple(self._source(a) for a in op.inputs["loop_vars"])
        blocks = self._nested(op)
        sizes = [(len(b.inputs), len(b.results)) for b in blocks]
        count = len(initial)
        if sizes != [(count, 1), (count, count)] or len(op.outputs) != count:
            needs = f"a condition and a body of its {count} variables, and as many results"
            raise ExecutionError(f"{self._path}: {op.name}: while_loop needs {needs}.")
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
            op=op.op, what=f"{self._path}: {op.op} {op.name!r}",
            compute=partial(compute, **constants), inputs=tuple(computed),
            outputs=self._outputs(op),
            converters=tuple(converter(out.type, self._precision, moves) for out in op.outputs),
            last_use=self._slots(last_use),
            itemsize=itemsize((out.type for out in op.outputs), self._precision), joins=joins,
        )  # fmt: skip

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
        last |= dict.fromkeys((out.name for out in op.outputs), i)
        last |= dict.fromkeys((name for name in uses(op) if name in last), i)
    return grouped((i, name) for name, i in last.items() if name not in outputs)


def uses(op: Operation) -> Iterable[str]:
    """Names an operation refers to, in its blocks too."""
    yield from op.reads
    for block in op.blocks:
        yield from block.outputs
        for nested in block.operations:
            yield from uses(nested)
