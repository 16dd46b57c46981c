"""A function as rules see it: who computes a value, its type, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.records import (
    Argument,
    DType,
    Function,
    Named,
    Operation,
    Ref,
    StateType,
    TensorType,
    Value,
)

Read = Callable[[Value], "npt.NDArray[Any] | None"]


class Depends(IntEnum):
    """What must be known before a quantity is; more is later."""

    NOTHING = 0
    SHAPES = 1
    VALUES = 2


@dataclass(frozen=True)
class Origin:
    """What a tensor's elements, and its extents, depend on.

    A slice bounded by `shape(x)` depends on shapes and is plain propagation of a flexible input;
    one bounded by an element of `x` depends on values, so its extents are known only at run time.
    """

    values: Depends = Depends.NOTHING
    extents: Depends = Depends.NOTHING


# The parameters that decide the extents of an op's result.
EXTENT_PARAMETERS = {
    "fill": ("shape",), "pad": ("pad",), "range_1d": ("start", "end", "step"),
    "random_bernoulli": ("shape",), "random_normal": ("shape",), "random_uniform": ("shape",),
    "reshape": ("shape",), "resize": ("shape",), "slice_by_index": ("begin", "end", "stride"),
    "slice_by_size": ("size",), "tile": ("reps",), "topk": ("k",),
}  # fmt: skip
_INDEX_PARAMETERS = EXTENT_PARAMETERS | {
    "slice_update": ("begin", "end", "stride"),
    **dict.fromkeys(("gather", "gather_along_axis", "gather_nd"), ("indices",)),
}
"""The parameters that say where an op begins and ends, or what it looks up."""
_WHOLE = frozenset(kind for kind in DType if "int" in kind) | {DType.BOOL}
_FROM_VALUES = frozenset({"cond", "non_zero", "while_loop"})
_UPDATES = {"slice_update": "x", "write_state": "data"}
_UNKNOWN = Origin(Depends.VALUES)
_IMAGE_SUFFIXES = {"mul": "__scaled__", "add": "__biased__"}
"""Of an image input's scale and bias (insert_image_preprocessing_op.py of coremltools 9.0)."""


def deciding(operation: Operation) -> Iterator[tuple[str, Argument]]:
    """The arguments that decide the extents of the result."""
    for parameter in EXTENT_PARAMETERS.get(operation.op, ()):
        yield from ((parameter, argument) for argument in operation.inputs.get(parameter, ()))


def is_constant(kind: str) -> bool:
    """Whether an op type is a constant's, which no unit runs."""
    return kind == "const" or kind.startswith("constexpr_")


class Graph:
    """Names, types and origins of one function's values, filled in program order.

    `ineligible` are names of values computed by ops that a rule has already found ineligible.
    """

    def __init__(self, function: Function, read: Read | None = None) -> None:
        self.function = function
        self.inputs = frozenset(named.name for named in function.inputs)
        self.outputs = frozenset(function.block.outputs)
        self.ineligible: set[str] = set()
        self._read = read
        self._types: dict[str, TensorType] = {}
        self._producers: dict[str, Operation] = {}
        self._origins: dict[str, Origin] = {}
        self._declare((*function.inputs, *function.block.inputs))

    def sites(self) -> Iterator[Site]:
        """Every operation, nested blocks included, once all it reads is known."""
        for operation in self.function.walk():
            origin = self._result(operation)
            for named in operation.outputs:
                self._define(named.name, named.type, origin)
                self._producers[named.name] = operation
            for block in operation.blocks:
                self._declare(block.inputs)
            yield Site(self, operation)

    @cached_property
    def updates(self) -> frozenset[str]:
        """Names of values that are written to a state, or updated once more before."""
        written = (op.inputs.get(_UPDATES.get(op.op, ""), ()) for op in self.function.walk())
        return frozenset(a.name for arguments in written for a in arguments if isinstance(a, Ref))

    @cached_property
    def readers(self) -> dict[str, Operation]:
        """The first operation that reads a value, by the value's name."""
        found: dict[str, Operation] = {}
        for operation in self.function.walk():
            for name in operation.reads:
                found.setdefault(name, operation)
        return found

    @cached_property
    def index_arithmetic(self) -> dict[int, frozenset[str]]:
        """Ops on integers that only make indices: by `id`, the slices and gathers that take them.

        A KV cache is written at a position, angles are looked up at it, so converters write `add`,
        `expand_dims`, `concat` of a few int32. An integer that is data anywhere is none of these.
        """
        operations = [op for op in self.function.walk() if not is_constant(op.op)]
        named = [*self.function.inputs, *(out for op in operations for out in op.outputs)]
        types = [(each.name, each.type) for each in named]
        tensors = [(n, kind) for n, kind in types if isinstance(kind, TensorType)]
        known, whole = {n for n, _ in types}, {n for n, kind in tensors if kind.dtype in _WHOLE}
        open_ = {n for n, kind in tensors if None in kind.shape}
        blocks = [block for op in operations for block in op.blocks]
        taken: dict[str, set[str]] = {}
        data = {name for block in (self.function.block, *blocks) for name in block.outputs}
        found: dict[int, frozenset[str]] = {}
        for op in reversed(operations):
            results = {out.name for out in op.outputs}
            takers = set[str]().union(*(taken.get(name, ()) for name in results))
            read = (known & {*op.reads}) if op.op != "cast" else set[str]()
            made = takers and results <= whole - data and read <= whole
            # How many there are, as of `range_1d`, is none: it decides shapes.
            decide = {each.name for _, each in deciding(op) if isinstance(each, Ref)} & known
            made = made and not (op.blocks or op.op == "shape" or (decide and results & open_))
            if made:
                found[id(op)] = frozenset(takers)
            for parameter, arguments in op.inputs.items():
                names = {argument.name for argument in arguments if isinstance(argument, Ref)}
                if not made and parameter not in _INDEX_PARAMETERS.get(op.op, ()):
                    data |= names
                for name in names:
                    taken.setdefault(name, set()).update(takers if made else {op.name})
        return found

    @cached_property
    def image_scaling(self) -> frozenset[str]:
        """Names of the scale and the bias that the converter puts behind an image input."""
        names: set[str] = set()
        for operation in self.function.block.operations:
            image = operation.name.removesuffix(_IMAGE_SUFFIXES.get(operation.op, "\0"))
            if image != operation.name and image in self.inputs:
                x = next(iter(operation.inputs.get("x", ())), None)
                reads = x.name if isinstance(x, Ref) else ""
                if reads == image or (reads == f"{image}__scaled__" and reads in names):
                    names.add(operation.name)
        return frozenset(names)

    def tensor(self, argument: Argument) -> TensorType | None:
        """The tensor type of an argument; `None` where it is no tensor or unknown."""
        if isinstance(argument, Ref):
            return self._types.get(argument.name)
        return argument.type if isinstance(argument.type, TensorType) else None

    def origin(self, argument: Argument) -> Origin:
        """What an argument depends on; a name that nothing defines counts as run-time data."""
        if isinstance(argument, Ref):
            return self._origins.get(argument.name, _UNKNOWN)
        return Origin()

    def producer(self, argument: Argument) -> Operation | None:
        """The operation that computes an argument; `None` for inputs and immediate values."""
        return self._producers.get(argument.name) if isinstance(argument, Ref) else None

    def array(self, argument: Argument) -> npt.NDArray[Any] | None:
        """The elements of an immediate argument or a `const`, read from disk if they lie there."""
        operation, value = self.producer(argument), None
        if isinstance(argument, Value):
            value = argument
        elif operation and operation.op == "const":
            value = operation.attributes.get("val")
        if value is None:
            return None
        if isinstance(value.data, np.ndarray):
            return value.data
        return self._read(value) if self._read else None

    def _declare(self, named: Iterable[Named]) -> None:
        for one in named:
            kind = one.type.wrapped if isinstance(one.type, StateType) else one.type
            flexible = isinstance(kind, TensorType) and None in kind.shape
            self._define(one.name, kind, Origin(Depends.VALUES, Depends(int(flexible))))

    def _define(self, name: str, kind: object, origin: Origin) -> None:
        self._origins[name] = origin
        self._types.pop(name, None)
        if isinstance(kind, TensorType):
            self._types[name] = kind

    def _result(self, operation: Operation) -> Origin:
        if operation.op in _FROM_VALUES:
            return Origin(Depends.VALUES, Depends.VALUES)
        read = [self.origin(a) for arguments in operation.inputs.values() for a in arguments]
        values = max((one.values for one in read), default=Depends.NOTHING)
        extents = max((one.extents for one in read), default=Depends.NOTHING)
        if operation.op == "shape":
            return Origin(extents)
        if operation.op.startswith("random_"):
            values = Depends.VALUES
        decide = (self.origin(a).values for _, a in deciding(operation))
        return Origin(values, max([extents, *decide]))


@dataclass(frozen=True, eq=False)
class Site:
    """One operation in its graph: what a rule's predicate is given."""

    graph: Graph
    operation: Operation

    @property
    def op(self) -> str:
        return self.operation.op

    def argument(self, parameter: str) -> Argument | None:
        """The (first) argument of a parameter; `None` where it is not given."""
        return next(iter(self.operation.inputs.get(parameter, ())), None)

    def arguments(self) -> Iterator[tuple[str, Argument]]:
        for parameter, arguments in self.operation.inputs.items():
            yield from ((parameter, argument) for argument in arguments)

    def tensor(self, parameter: str) -> TensorType | None:
        """The type of a parameter; `None` where it is not given, or is no tensor."""
        argument = self.argument(parameter)
        return None if argument is None else self.graph.tensor(argument)

    def depends(self, parameter: str) -> Depends:
        """What the values of a parameter depend on; nothing where it is not given."""
        argument = self.argument(parameter)
        return Depends.NOTHING if argument is None else self.graph.origin(argument).values

    def integers(self, parameter: str) -> tuple[int, ...]:
        """A constant vector of integers or bools; empty where absent or not constant."""
        argument = self.argument(parameter)
        array = None if argument is None else self.graph.array(argument)
        return () if array is None else tuple(map(int, array.ravel()))

    def inputs(self) -> Iterator[TensorType]:
        """Types of the tensors it reads that are known only at run time (no weights)."""
        for _, argument in self.arguments():
            kind = self.graph.tensor(argument)
            if kind and self.graph.origin(argument).values > Depends.NOTHING:
                yield kind

    def outputs(self) -> Iterator[TensorType]:
        return (o.type for o in self.operation.outputs if isinstance(o.type, TensorType))

    def compressed_by(self, argument: Argument) -> Iterator[Operation]:
        """The `constexpr_*` ops that expand a weight, nearest first."""
        pending, seen = [argument], set()
        while pending:
            producer = self.graph.producer(pending.pop(0))
            if producer and producer.op.startswith("constexpr_") and id(producer) not in seen:
                seen.add(id(producer))
                yield producer
                pending += (a for arguments in producer.inputs.values() for a in arguments)

    @property
    def no_compute(self) -> str:
        """Why it is no compute op; empty for one.

        At the function's boundary the converter puts a `boundary cast`, `image scaling`, and
        `classify`, which looks up a label; `index arithmetic` only says where slices begin.
        """
        if self.op == "classify":
            return "classify"
        if self.operation.name in self.graph.image_scaling:
            return "image scaling"
        if self.op == "cast" and self._at_the_boundary():
            return "boundary cast"
        return "index arithmetic" if id(self.operation) in self.graph.index_arithmetic else ""

    def _at_the_boundary(self) -> bool:
        """Whether a cast converts an input or an output; int8 outputs are R104's."""
        source, name = self.argument("x"), self.operation.name
        if name in self.graph.outputs:
            return all(kind.dtype is not DType.INT8 for kind in self.outputs())
        if isinstance(source, Ref) and source.name in self.graph.inputs | self.graph.image_scaling:
            return True
        reader = self.graph.readers.get(name)
        return reader is not None and reader.op == "classify"
