"""The roofline bound: no call is faster than its bytes are streamed, or its products computed.

Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.executor.shapes import Parameters, Shape, ShapeRun, input_shapes
from pytest_ane.mlprogram.model import byte_size, read_model
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
from pytest_ane.tools._devices import Device

# Multiply-accumulates of one call of an operation, from the shapes it takes and gives.


def macs(op: str, parameters: Parameters, result: Shape) -> int:
    """Multiply-accumulates of one call; 0 for an operation that multiplies no matrices.

    Args:
        op: its type.
        parameters: arrays and constants by MIL's names; of arrays only the shapes count.
        result: shape of its first result.
    """
    count = _COUNTS.get(op)
    return count(parameters, result) if count else 0


def _conv_macs(parameters: Parameters, result: Shape) -> int:
    """Every element of the result sums over the kernel of its channel, `[C / groups, *K]`."""
    return math.prod(result) * math.prod(_extents(parameters["weight"])[1:])


def _conv_transpose(parameters: Parameters, result: Shape) -> int:
    """Every element of the input meets the kernels of its channel, `[O / groups, *K]`."""
    return math.prod(_extents(parameters["x"])) * math.prod(_extents(parameters["weight"])[1:])


def _linear_macs(parameters: Parameters, result: Shape) -> int:
    return math.prod(result) * int(parameters["weight"].shape[1])


def _matmul_macs(parameters: Parameters, result: Shape) -> int:
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


def _attention_macs(parameters: Parameters, result: Shape) -> int:
    """Q K^T and the product with V: `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`."""
    query, value = _extents(parameters["query"]), _extents(parameters["value"])
    return math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1])


def _recurrent(parameters: Parameters, result: Shape) -> int:
    """Every step of `x [T, B, I]` multiplies by all weights, in either direction."""
    weights = (v for k, v in parameters.items() if k.startswith("weight") and v is not None)
    return math.prod(_extents(parameters["x"])[:2]) * sum(math.prod(_extents(w)) for w in weights)


def _extents(value: Any) -> Shape:
    return tuple(int(extent) for extent in value.shape)


_COUNTS: dict[str, Callable[[Parameters, Shape], int]] = {
    "conv": _conv_macs,
    "conv_transpose": _conv_transpose,
    "einsum": _einsum,
    "gru": _recurrent,
    "linear": _linear_macs,
    "lstm": _recurrent,
    "matmul": _matmul_macs,
    "rnn": _recurrent,
    "scaled_dot_product_attention": _attention_macs,
}


# A program's costs at a given T, from the program alone: shapes are the executor's own.

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


# The roofline bound: no call is faster than its bytes are streamed, or its products computed.
#
# Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.

_GIGA, _TERA = 1e9, 1e12
_ALL = "all"
"""The kind of the sum."""


@dataclass(frozen=True)
class Roofline:
    """The least time of one call of one shard.

    Attributes:
        streaming: seconds to move weights, states, inputs and outputs.
        computing: seconds to multiply and accumulate.
    """

    streaming: float
    computing: float

    @property
    def seconds(self) -> float:
        """The longer of the two: at best they overlap."""
        return max(self.streaming, self.computing)

    @property
    def binds(self) -> Literal["bandwidth", "compute"]:
        """The resource that takes longer."""
        return "bandwidth" if self.streaming >= self.computing else "compute"


def roofline(costs: Costs, device: Device, *, weights: float = 1.0, macs: float = 1.0) -> Roofline:
    """The bound of one call; `weights` and `macs` scale its weights' bytes and its MACs."""
    stored = costs.weights if device.held is None else device.held * costs.elements
    streamed = weights * stored + costs.states + costs.inputs + costs.outputs
    operations = 2 * macs * costs.padded(device.lanes)
    return Roofline(streamed / (_GIGA * device.bandwidth), operations / (_TERA * device.peak))


@dataclass(frozen=True)
class Group:
    """Shards of one kind that cost the same.

    Attributes:
        kind: `mixture`, `attention`, `head`...
        subject: the shard whose program was counted.
        count: how many there are, itself included.
        at: its costs at a T.
    """

    kind: str
    subject: str
    count: int
    at: Callable[[int], Costs]


def same_costs(
    shards: Sequence[Shard], kind: Callable[[Shard], str], layout: Callable[[Shard], object]
) -> list[list[Shard]]:
    """Shards of one kind, compression and layout together; users' own packages each alone.

    Args:
        shards: in running order.
        kind: a shard's kind.
        layout: its inputs and outputs, compared by their text.
    """
    groups: dict[object, list[Shard]] = {}
    for shard in shards:
        sizes = (shard.max_tokens, shard.context, shard.target)
        built = (kind(shard), shard.requested.model_dump_json(), sizes, repr(layout(shard)))
        groups.setdefault(shard.id if shard.artifact else built, []).append(shard)
    return list(groups.values())


def counted(
    kind: str,
    shards: Sequence[Shard],
    built: Callable[[Shard], Path | None],
    build: Callable[[Shard], Path],
) -> list[Group]:
    """Built shards are counted individually; unbuilt ones by one representative.

    The representative is the built shard nearest to the middle, for a model's first and last may
    differ; where none is built, the one in the middle is built now.
    """
    paths = {shard.id: path for shard in shards if (path := built(shard)) is not None}
    middle = len(shards) // 2
    if not paths:
        shard = shards[middle]
        return [Group(kind, shard.id, len(shards), costs_of(build(shard), shard.function))]
    places = [i for i, shard in enumerate(shards) if shard.id in paths]
    chosen = shards[min(places, key=lambda i: abs(i - middle))].id
    others = len(shards) - len(paths)
    functions = {shard.id: shard.function for shard in shards}
    return [
        Group(kind, name, 1 + (others if name == chosen else 0), costs_of(path, functions[name]))
        for name, path in paths.items()
    ]


def costs_of(package: Path, function: str | None = None) -> Callable[[int], Costs]:
    """Costs of a package, or of one of its functions, by T.

    Raises:
        ProgramError: when called, where it cannot be read.
    """

    @lru_cache
    def at(tokens: int) -> Costs:
        return count_costs(read_model(package, weights=False, function=function), tokens)

    return at


@dataclass(frozen=True)
class KindBound:
    """Shards of one kind in a call of the whole model.

    Attributes:
        kind: as of their group.
        count: how many.
        weights, states, held: bytes of all of them.
        macs: of all of them.
        intensity: floating-point operations per byte streamed.
        streaming, computing, seconds: bounds, summed; shards run one after the other.
        bound_by: the resource that binds: `bandwidth`, `compute`, or `both` among them.
    """

    kind: str
    count: int
    weights: int
    states: int
    held: int
    macs: int
    intensity: float
    streaming: float
    computing: float
    seconds: float
    bound_by: str


@dataclass(frozen=True)
class CallBound:
    """One call of all shards at a T.

    Attributes:
        tokens: T; None where shapes are fixed.
        kinds: in running order.
        total: of all kinds together.
        half_weights, half_macs: seconds with weights of half the bytes, and with half the MACs.
        unpadded: seconds if the device pads no axis to its lane width.
    """

    tokens: int | None
    kinds: tuple[KindBound, ...]
    total: KindBound
    half_weights: float
    half_macs: float
    unpadded: float

    @property
    def rate(self) -> float:
        """The most tokens a second, or calls where shapes are fixed."""
        return self.rate_of(self.total.seconds)

    def rate_of(self, seconds: float) -> float:
        """Tokens a second of a call that takes so long."""
        return (self.tokens or 1) / seconds


def bound_call(groups: Sequence[Group], device: Device, tokens: int) -> CallBound:
    """The bound of one call of all shards.

    Raises:
        ExecutionError: a shard does not take so many tokens.
    """
    costs = [(group, group.at(tokens)) for group in groups]

    def total(on: Device, *, weights: float = 1.0, macs: float = 1.0) -> float:
        return sum(g.count * roofline(c, on, weights=weights, macs=macs).seconds for g, c in costs)

    def of_kind(kind: str) -> KindBound:
        chosen = [(g.count, c) for g, c in costs if kind in (g.kind, _ALL)]
        return _sum(kind, chosen, device)

    return CallBound(
        tokens=None if all(c.tokens is None for _, c in costs) else tokens,
        kinds=tuple(map(of_kind, dict.fromkeys(group.kind for group in groups))),
        total=of_kind(_ALL),
        half_weights=total(device, weights=0.5),
        half_macs=total(device, macs=0.5),
        unpadded=total(device.model_copy(update={"lanes": 1})),
    )


def _sum(kind: str, costs: Sequence[tuple[int, Costs]], device: Device) -> KindBound:
    def total(value: Callable[[Costs, Roofline], float]) -> Any:
        return sum(n * value(c, roofline(c, device)) for n, c in costs)

    streaming, macs = total(lambda _, b: b.streaming), total(lambda c, _: c.macs)
    binding = {roofline(c, device).binds for _, c in costs}
    return KindBound(
        kind=kind,
        count=sum(n for n, _ in costs),
        weights=total(lambda c, _: c.weights),
        states=total(lambda c, _: c.states),
        held=total(lambda c, _: c.held),
        macs=macs,
        intensity=2 * macs / (streaming * _GIGA * device.bandwidth) if streaming else math.inf,
        streaming=streaming,
        computing=total(lambda _, b: b.computing),
        seconds=total(lambda _, b: b.seconds),
        bound_by=binding.pop() if len(binding) == 1 else "both",
    )
