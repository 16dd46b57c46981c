"""A program's costs at a given T, from the program alone: shapes are the executor's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from pytest_ane.mlprogram.executor.shapes import Parameters, ShapeRun, input_shapes
from pytest_ane.mlprogram.model import byte_size
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    DType,
    MLModel,
    Operation,
    Ref,
    StateType,
    TensorType,
    Value,
    ValueType,
)
from pytest_ane.mlprogram.values import bits
from pytest_ane.tools._macs import macs

_GATHERS = frozenset({"gather", "gather_along_axis", "gather_nd"})
"""Operations that read no more of a weight than they give."""
_STATES = frozenset({"read_state", "write_state"})
"""Operations on states, whose bytes are counted apart."""


@dataclass(frozen=True)
class OpCost:
    """One operation of a call.

    Attributes:
        name: of its first result; the op's type where it has none.
        op: its type, such as `conv`.
        macs: multiply-accumulates; 0 for all but convolutions, matrix products, attention and
            recurrent layers. One is two floating-point operations.
        width: extent of its result's last axis.
        weights: bytes of weights as stored, palettes' indices and tables; those that several
            operations read count for the first.
        elements: numbers that those weights are once decompressed.
        states: bytes it reads from a state or writes to one.
    """

    name: str
    op: str
    macs: int = 0
    width: int = 1
    weights: int = 0
    elements: int = 0
    states: int = 0

    def padded(self, lanes: int) -> int:
        """MACs where the last axis is padded to a multiple of `lanes`."""
        width = max(self.width, 1)
        return self.macs // width * (math.ceil(width / lanes) * lanes)


@dataclass(frozen=True)
class Costs:
    """A call of a program.

    Attributes:
        tokens: the T of its flexible inputs; None where all its shapes are fixed.
        operations: in program order, constants left out.
        inputs, outputs: bytes of the host's tensors.
        held: bytes of its states.
    """

    tokens: int | None
    operations: tuple[OpCost, ...]
    inputs: int
    outputs: int
    held: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operations."""
        return sum(op.macs for op in self.operations)

    def padded(self, lanes: int) -> int:
        """MACs where every result's last axis is padded to a multiple of `lanes`."""
        return sum(op.padded(lanes) for op in self.operations)

    @property
    def weights(self) -> int:
        """Bytes of all weights as stored."""
        return sum(op.weights for op in self.operations)

    @property
    def elements(self) -> int:
        """Numbers that the weights are once decompressed."""
        return sum(op.elements for op in self.operations)

    @property
    def states(self) -> int:
        """Bytes that are read from states and written to them."""
        return sum(op.states for op in self.operations)


def count_costs(model: MLModel, tokens: int = 1) -> Costs:
    """The costs of one call.

    Args:
        model: as `mil.read_model` gives it; `weights=False` suffices.
        tokens: T of the inputs' flexible axes; ignored where there are none.

    Raises:
        ExecutionError: the inputs take no such T, an operation is unknown, or how often one runs
            depends on values.
    """
    shapes, flexible = input_shapes(model, tokens)
    function = model.main
    counter = _Counter(model, ShapeRun(model, shapes))
    operations = tuple(counter.operations())
    states = [n.type.wrapped for n in function.inputs if isinstance(n.type, StateType)]
    return Costs(
        tokens=tokens if flexible else None,
        operations=operations,
        inputs=sum(map(counter.size, shapes)),
        outputs=sum(map(counter.size, function.block.outputs)),
        held=sum(_elements(kind) * bits(kind.dtype) // 8 for kind in states),
    )


class _Counter:
    """Counts every operation of a run."""

    def __init__(self, model: MLModel, run: ShapeRun) -> None:
        self._run = run
        self._weights = Weights()
        function = model.main
        outputs = (out for op in function.block.operations for out in op.outputs)
        self._types: dict[str, ValueType] = {n.name: n.type for n in (*function.inputs, *outputs)}
        self._producers: dict[str, Operation] = {}
        self._touched: set[tuple[str, str]] = set()

    def operations(self) -> Iterator[OpCost]:
        """Costs of every operation that runs."""
        for op, parameters in self._run.operations():
            if parameters is None:
                self._weights.fold(op)
                continue
            yield self._count(op, parameters)
            self._producers.update({out.name: op for out in op.outputs})

    def size(self, name: str) -> int:
        """Bytes of a value as typed, such as two an element for fp16; 0 for what is no tensor."""
        kind = self._types[name]
        if not isinstance(kind, TensorType) or kind.dtype is DType.STRING:
            return 0
        return -(-math.prod(self._run.shape(name)) * bits(kind.dtype) // 8)

    def _count(self, op: Operation, parameters: Parameters) -> OpCost:
        results = [self._run.shape(out.name) for out in op.outputs]
        weights, elements = self._weights.take(op)
        if op.op in _GATHERS and weights:
            share = min(1.0, sum(map(math.prod, results)) / max(elements, 1))
            weights, elements = round(weights * share), round(elements * share)
        return OpCost(
            op.name,
            op.op,
            macs=macs(op.op, parameters, results[0]) if results else 0,
            width=results[0][-1] if results and results[0] else 1,
            weights=weights,
            elements=elements,
            states=self._state_bytes(op) if op.op in _STATES else 0,
        )

    def _state_bytes(self, op: Operation) -> int:
        """Bytes to or from a state: all of it once, or only the rows that are put into it."""
        (state,) = op.inputs["input"]
        assert isinstance(state, Ref)
        if (op.op, state.name) in self._touched:
            return 0
        self._touched.add((op.op, state.name))
        kind = self._types[state.name]
        assert isinstance(kind, StateType)
        whole = -(-_elements(kind.wrapped) * bits(kind.wrapped.dtype) // 8)
        return whole if op.op == "read_state" else min(whole, self._update(op) or whole)

    def _update(self, op: Operation) -> int:
        """Bytes that a `slice_update` puts into a state that is written at once; else 0."""
        (data,) = op.inputs["data"]
        source = self._producers.get(data.name) if isinstance(data, Ref) else None
        if source is None or source.op != "slice_update":
            return 0
        (update,) = source.inputs["update"]
        return self.size(update.name) if isinstance(update, Ref) else 0


class Size(NamedTuple):
    """Of a weight: bytes as stored, and elements once decompressed."""

    stored: int
    elements: int


_Leaves = dict[object, Size]
"""Sizes by what tells stored constants apart."""


class Weights:
    """The stored constants that a program's values come from, filled in program order."""

    def __init__(self) -> None:
        self._leaves: dict[str, _Leaves] = {}
        self._read: set[object] = set()

    def fold(self, op: Operation) -> None:
        """Note an operation of constants alone, such as one that decompresses a weight."""
        decompresses = op.op.startswith("constexpr_")
        leaves = self._of(chain(_arguments(op), op.attributes.values()), whole=decompresses)
        if decompresses:
            # Its result counts as elements, not the indices and tables that it reads.
            leaves = {key: Size(size.stored, 0) for key, size in leaves.items()}
            leaves[op] = Size(0, _elements(op.outputs[0].type))
        self._leaves.update({out.name: leaves for out in op.outputs})

    def take(self, op: Operation) -> Size:
        """Total of the weights that an operation reads and none before it has read."""
        leaves = self._of(_arguments(op), whole=False)
        new = {key: size for key, size in leaves.items() if key not in self._read}
        self._read |= new.keys()
        return Size(sum(s.stored for s in new.values()), sum(s.elements for s in new.values()))

    def _of(self, arguments: Iterable[Argument], *, whole: bool) -> _Leaves:
        """Constants behind arguments.

        Those in the weights file; with `whole` those in the program too, such as a scale.
        """
        leaves: _Leaves = {}
        for argument in arguments:
            if isinstance(argument, Ref):
                leaves |= self._leaves.get(argument.name, {})
            elif isinstance(argument.data, Blob):
                leaves[argument.data] = Size(byte_size(argument), _elements(argument.type))
            elif whole and _is_tensor(argument):
                leaves[id(argument)] = Size(byte_size(argument), 0)
        return leaves


def _arguments(op: Operation) -> Iterator[Argument]:
    return chain.from_iterable(op.inputs.values())


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is not DType.STRING


def _elements(kind: Any) -> int:
    return math.prod(d or 0 for d in kind.shape) if isinstance(kind, TensorType) else 0
