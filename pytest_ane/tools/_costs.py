"""What one call of a program costs at a given T, from the program alone: its operations, bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.blob import byte_size
from pytest_ane.mlprogram.executor.shapes import Parameters, Shape, ShapeRun, input_shapes
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    DType,
    MLModel,
    Operation,
    Ref,
    StateType,
    TensorType,
    ValueType,
)
from pytest_ane.mlprogram.values import bits


def macs(op: str, parameters: Parameters, result: Shape) -> int:
    """Multiply-accumulates of one call, by shapes of MIL's `parameters` and of the first result."""
    count = _COUNTS.get(op)
    return count(parameters, result) if count else 0


def _conv(parameters: Parameters, result: Shape) -> int:
    """Every element of the result sums over its channel's weights, `[C / groups, *K]` or `[I]`."""
    return math.prod(result) * int(math.prod(parameters["weight"].shape[1:]))


def _conv_transpose(parameters: Parameters, result: Shape) -> int:
    """Every element of the input meets the kernels of its channel, `[O / groups, *K]`."""
    return int(math.prod(parameters["x"].shape) * math.prod(parameters["weight"].shape[1:]))


def _matmul(parameters: Parameters, result: Shape) -> int:
    x = parameters["x"]
    turned = parameters.get("transpose_x", False) and x.ndim > 1
    return math.prod(result) * int(x.shape[-2 if turned else -1])


def _einsum(parameters: Parameters, result: Shape) -> int:
    """Every combination of the letters' extents; one that broadcasts has its larger extent."""
    operands = parameters["equation"].replace(" ", "").partition("->")[0].split(",")
    extents: dict[str, int] = {}
    for letters, value in zip(operands, parameters["values"], strict=True):
        for letter, extent in zip(letters, value.shape, strict=True):
            extents[letter] = max(extent, extents.get(letter, 1))
    return math.prod(extents.values())


def _attention(parameters: Parameters, result: Shape) -> int:
    """Q K^T and the product with V: `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`."""
    query, value = parameters["query"].shape, parameters["value"].shape
    return int(math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1]))


def _recurrent(parameters: Parameters, result: Shape) -> int:
    """Every step of `x [T, B, I]` multiplies by all weights, in either direction."""
    weights = (v for k, v in parameters.items() if k.startswith("weight") and v is not None)
    return int(math.prod(parameters["x"].shape[:2]) * sum(math.prod(w.shape) for w in weights))


_COUNTS: dict[str, Callable[[Parameters, Shape], int]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "einsum": _einsum,
    "gru": _recurrent,
    "linear": _conv,
    "lstm": _recurrent,
    "matmul": _matmul,
    "rnn": _recurrent,
    "scaled_dot_product_attention": _attention,
}


_GATHERS = frozenset({"gather", "gather_along_axis", "gather_nd"})
"""Operations that read no more of a weight than they give."""


@dataclass(frozen=True)
class OpCost:
    """One operation of a call.

    Attributes:
        name: of its first result; the op's type where it has none.
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
    """A call of a program; `macs`, `weights`, `elements` and `states` are those of all operations.

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
        return sum(op.macs for op in self.operations)

    def padded(self, lanes: int) -> int:
        """MACs where every result's last axis is padded to a multiple of `lanes`."""
        return sum(op.padded(lanes) for op in self.operations)

    @property
    def weights(self) -> int:
        return sum(op.weights for op in self.operations)

    @property
    def elements(self) -> int:
        return sum(op.elements for op in self.operations)

    @property
    def states(self) -> int:
        return sum(op.states for op in self.operations)


def costs_of(package: Path, function: str | None = None) -> Callable[[int], Costs]:
    """Costs of a package, or of one of its functions, by T; `ProgramError` when called."""

    @lru_cache
    def at(tokens: int) -> Costs:
        return count_costs(read_model(package, weights=False, function=function), tokens)

    return at


def count_costs(model: MLModel, tokens: int = 1) -> Costs:
    """The costs of one call; `model` needs no weights, and one of fixed shapes ignores `tokens`.

    `ExecutionError` where the inputs take no such T, an operation is unknown, or how often one runs
    depends on values.
    """
    shapes, flexible = input_shapes(model, tokens)
    function = model.main
    counter = _Counter(model, ShapeRun(model, shapes))
    operations = tuple(counter.operations())
    return Costs(
        tokens=tokens if flexible else None,
        operations=operations,
        inputs=sum(map(counter.size, shapes)),
        outputs=sum(map(counter.size, function.block.outputs)),
        held=sum(_bytes(n.type.wrapped) for n in function.inputs if isinstance(n.type, StateType)),
    )


class _Counter:
    def __init__(self, model: MLModel, run: ShapeRun) -> None:
        self._run, self._weights = run, Weights()
        outputs = (out for op in model.main.block.operations for out in op.outputs)
        self._types: dict[str, ValueType] = {n.name: n.type for n in (*model.main.inputs, *outputs)}
        self._producers: dict[str, Operation] = {}
        self._touched: set[tuple[str, str]] = set()

    def operations(self) -> Iterator[OpCost]:
        for op, parameters in self._run.operations():
            if parameters is None:
                self._weights.fold(op)
                continue
            results = [self._run.shape(out.name) for out in op.outputs]
            weights, elements = self._weights.take(op)
            if op.op in _GATHERS and weights:
                share = min(1.0, sum(map(math.prod, results)) / max(elements, 1))
                weights, elements = round(weights * share), round(elements * share)
            yield OpCost(
                op.name,
                op.op,
                macs=macs(op.op, parameters, results[0]) if results else 0,
                width=results[0][-1] if results and results[0] else 1,
                weights=weights,
                elements=elements,
                states=self._state_bytes(op) if op.op in ("read_state", "write_state") else 0,
            )
            self._producers.update({out.name: op for out in op.outputs})

    def size(self, name: str) -> int:
        """Bytes of a value as typed, such as two an element for fp16; 0 for what is no tensor."""
        kind = self._types[name]
        if not isinstance(kind, TensorType) or kind.dtype is DType.STRING:
            return 0
        return -(-math.prod(self._run.shape(name)) * bits(kind.dtype) // 8)

    def _state_bytes(self, op: Operation) -> int:
        """Bytes to or from a state, once: all of it, or only the rows of a `slice_update` of it."""
        (state,) = op.inputs["input"]
        assert isinstance(state, Ref)
        if (op.op, state.name) in self._touched:
            return 0
        self._touched.add((op.op, state.name))
        kind = self._types[state.name]
        assert isinstance(kind, StateType)
        whole = _bytes(kind.wrapped)
        data = op.inputs["data"][0] if op.op == "write_state" else None
        source = self._producers.get(data.name) if isinstance(data, Ref) else None
        if source is not None and source.op == "slice_update":
            (update,) = source.inputs["update"]
            if isinstance(update, Ref):
                return min(whole, self.size(update.name) or whole)
        return whole


_Leaves = dict[object, tuple[int, int]]
"""Bytes as stored and elements once decompressed, by what tells stored constants apart."""


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
            leaves = {key: (stored, 0) for key, (stored, _) in leaves.items()}
            leaves[op] = (0, _elements(op.outputs[0].type))
        self._leaves.update({out.name: leaves for out in op.outputs})

    def take(self, op: Operation) -> tuple[int, int]:
        """Total of the weights that an operation reads and none before it has read."""
        leaves = self._of(_arguments(op), whole=False)
        new = {key: size for key, size in leaves.items() if key not in self._read}
        self._read |= new.keys()
        return sum(stored for stored, _ in new.values()), sum(n for _, n in new.values())

    def _of(self, arguments: Iterable[Argument], *, whole: bool) -> _Leaves:
        """Constants behind arguments: those in the weights file, with `whole` the program's too."""
        leaves: _Leaves = {}
        for argument in arguments:
            if isinstance(argument, Ref):
                leaves |= self._leaves.get(argument.name, {})
            elif isinstance(argument.data, Blob):
                leaves[argument.data] = (byte_size(argument), _elements(argument.type))
            elif (
                whole
                and isinstance(kind := argument.type, TensorType)
                and kind.dtype is not DType.STRING
            ):
                leaves[id(argument)] = (byte_size(argument), 0)
        return leaves


def _arguments(op: Operation) -> Iterator[Argument]:
    return chain.from_iterable(op.inputs.values())


def _elements(kind: Any) -> int:
    return math.prod(d or 0 for d in kind.shape) if isinstance(kind, TensorType) else 0


def _bytes(kind: TensorType) -> int:
    return -(-_elements(kind) * bits(kind.dtype) // 8)
