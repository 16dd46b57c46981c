"""What the segmenter works on, and what an operation is estimated to cost on each backend.

A graph is a list of operations in file order, whether it comes from a MIL program or a table. A
function per class of operations gives amounts (bytes or floating-point operations) and the names
of the rates they are divided by; the slowest of several counts. The rates, with source and
certainty, are in `model.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from pytest_ane.manifest.base import loads
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.text import printable

Backend = Literal["ane", "bnns", "classic", "gpu"]
Unit = Literal["ANE", "CPU", "GPU"]
Units = Literal["CPU_AND_NE", "ALL"]
NoData = Literal["compressed weights", "flexible shapes", "nested blocks", "several functions",
                 "states"]  # fmt: skip
Work = Literal["large", "small", "unknown"]
Cause = Literal["unsupported", "neighbour", "too little work", "cheaper on the GPU"]

BACKENDS: Mapping[Units, tuple[Backend, ...]] = {
    "CPU_AND_NE": ("ane", "bnns", "classic"),
    "ALL": ("ane", "bnns", "classic", "gpu"),
}
UNIT: Mapping[Backend, Unit] = {"ane": "ANE", "bnns": "CPU", "classic": "CPU", "gpu": "GPU"}

_SIZES = {"bool": 1, "fp32": 4, "int32": 4, "uint32": 4, "fp64": 8, "int64": 8, "uint64": 8}
_SIZES |= {"int8": 1, "uint8": 1, "int4": 1, "uint4": 1}

Shape: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True)
class Tensor:
    """A tensor an operation reads or computes, `constant` where the program holds its value.

    An extent known only at run time is None; the dtype is MIL's name, such as `fp16`.
    """

    shape: Shape
    dtype: str = "fp16"
    constant: bool = False

    @cached_property
    def elements(self) -> int:
        """Number of elements; an extent known only at run time counts as 1."""
        return math.prod(extent or 1 for extent in self.shape)

    @cached_property
    def bytes(self) -> int:
        """Size in memory; 2 bytes an element for 16-bit types."""
        return self.elements * _SIZES.get(self.dtype, 2)


@dataclass(frozen=True)
class Op:
    """One operation of a graph.

    Attributes:
        kind: the op type, such as `conv`.
        inputs: tensors it computes with: run-time inputs, and constant operands of element-wise
            operations. Weights and parameters (axes, shapes, a norm's scale) are left out.
        weight: of `conv`, `conv_transpose` (MIL's layout) and `linear` ([N, K]).
        attributes: integers by MIL's parameter names, such as `strides`, `dilations`, `groups`,
            `kernel_sizes`, `perm`, `transpose_x`; besides `bias`, 1 where there is one,
            `runtime_indices` and `runtime_begin`.
        no_data: its properties that no public plan has.
        boundary: whether it is no compute op: at the function's boundary, or index arithmetic.
    """

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight: Tensor | None = None
    attributes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    no_data: tuple[NoData, ...] = ()
    boundary: bool = False

    @property
    def known(self) -> bool:
        return all(None not in tensor.shape for tensor in (*self.inputs, *self.outputs))

    def flag(self, name: str, default: int = 0) -> int:
        return next(iter(self.attributes.get(name, ())), default)


@dataclass(frozen=True)
class Off:
    """Why an operation is predicted off the ANE.

    Attributes:
        cause: `unsupported`; `neighbour` where it would be on the ANE if an unsupported operation
            near it were; else `too little work` on the CPU, and `cheaper on the GPU` there.
        limit: the limit that makes it unsupported.
        short_ms: cost of the best path with it on the ANE, less that of the best path.
        neighbour: name of the unsupported operation.
    """

    cause: Cause
    limit: str = ""
    short_ms: float | None = None
    neighbour: str = ""


@dataclass(frozen=True)
class Placed:
    """A predicted operation.

    Attributes:
        unit: where it runs; `None` where nothing is known of its shapes.
        ms: estimated duration on that unit, as Core ML's cost model has it.
        margin: cost of the best path without it on that unit, less that of the best path;
            `None` where no other unit supports it.
        undecided: margin below the model's limit, or a tie, or nothing known.
        boundary: as of its `Op`.
        work: of the row of supported operations it is in, on a chip whose costs are unknown.
    """

    name: str
    kind: str
    unit: Unit | None
    ms: float | None
    margin: float | None
    undecided: bool
    off: Off | None = None
    boundary: bool = False
    work: Work | None = None


@dataclass(frozen=True)
class Segment:
    """Operations in a row on one unit: indices `first` to `last` of the graph."""

    unit: Unit
    first: int
    last: int
    ms: float


@dataclass(frozen=True)
class Prediction:
    """Predicted placement of a graph; never a measurement.

    Attributes:
        system: empty where the chip's costs are unknown.
        total_ms: cost of the best path, launches and switches included; `None` where Core ML makes
            no estimates, or the chip's costs are unknown, so that there is no path.
        without_ane_ms: cost of the best path that leaves the ANE out; `None` as above.
        no_data: sentences on what the prediction rests on without data.
    """

    chip: str
    system: str
    units: Units
    operations: tuple[Placed, ...]
    segments: tuple[Segment, ...]
    total_ms: float | None
    without_ane_ms: float | None
    no_data: tuple[str, ...]

    @property
    def switches(self) -> int:
        return max(len(self.segments) - 1, 0)

    @property
    def margin(self) -> float | None:
        """What the ANE saves: the best path without it, less the best path, in ms."""
        without, total = self.without_ane_ms, self.total_ms
        return None if total is None or without is None else max(without - total, 0.0)


@dataclass(frozen=True)
class Predicted:
    """The prediction of one function, perhaps at a T; `unknown` is why shapes are not known."""

    function: str
    tokens: int | None
    prediction: Prediction
    unknown: str = ""
    ops: tuple[Op, ...] = field(default=(), repr=False)

    @property
    def compute(self) -> tuple[Placed, ...]:
        """Operations but those that only convert an input or output, or make indices."""
        return tuple(op for op in self.prediction.operations if not op.boundary)

    def weakness(self) -> tuple[bool, int, int, float]:
        """Sorts what is likelier to leave the ANE before what is not."""
        off = sum(op.unit != "ANE" for op in self.compute)
        decided = sum(not op.undecided for op in self.compute)
        margin = self.prediction.margin
        return (not self.unknown, -off, decided, math.inf if margin is None else margin)


Counts = Literal["io", "in", "bytes", "flops"]


@dataclass(frozen=True)
class Rate:
    """GB/s (or GFLOP/s where it counts flops) by backend, but for those that count nothing."""

    counts: Counts
    certainty: str
    speeds: Mapping[Backend, float]


@dataclass(frozen=True)
class CostModel:
    """Core ML's cost model of one chip and system.

    `launch`, `switch` and `end` are milliseconds by backend, `rates` by name of a class, or of one
    of its leaves; paths closer than `tie_ms` cost the same, and a prediction of a margin below
    `undecided_ms` is undecided.
    """

    chip: str
    system: str
    launch: Mapping[Backend, float]
    switch: Mapping[Backend, float]
    end: Mapping[Backend, float]
    rates: Mapping[str, Rate]
    thresholds: Mapping[str, float]
    tie_ms: float
    undecided_ms: float


@cache
def _read(name: str) -> Mapping[str, Any]:
    return loads(files(__package__).joinpath(name).read_text("utf-8"))


def _by_backend(entry: Mapping[str, Any]) -> dict[Backend, float]:
    return {backend: entry[backend] for backend in get_args(Backend) if backend in entry}


@cache
def models() -> Mapping[str, CostModel]:
    """The chips whose costs are known, by name: `M4`, `M4 Pro`."""
    file, found = _read("model.toml"), {}
    none = dict.fromkeys(get_args(Backend), 0.0)
    edges = {edge["kind"]: none | _by_backend(edge) for edge in file["edge"]}
    thresholds = {entry["name"]: entry["value"] for entry in file["threshold"]}
    for chip in file["chip"]:
        own = chip.get("rates", {})
        each = {rate["name"]: rate | own.get(rate["name"], {}) for rate in file["rate"]}
        rates = {
            name: Rate(rate["counts"], rate["certainty"], _by_backend(rate))
            for name, rate in each.items()
        }
        found[chip["name"]] = CostModel(
            chip["name"], chip["system"], edges["launch"], edges["switch"], edges["end"], rates,
            thresholds | chip.get("thresholds", {}), file["tie-ms"], file["undecided-ms"],
        )  # fmt: skip
    return found


def chip_named(name: str) -> str:
    """A chip's name as Apple writes it, with costs or without; `ManifestError` of another."""

    def plain(name: str) -> str:
        return "".join(name.split()).casefold()

    chips: tuple[str, ...] = (*models(), *_read("model.toml")["without-costs"])
    if chip := next((chip for chip in chips if plain(chip) == plain(name)), None):
        return chip
    raise ManifestError(
        f"{printable(name)!r} is no chip with an ANE; give {' or '.join(models())}, or for support "
        "alone another, such as M1, M5 Max or A17 Pro."
    )


def launch_bounds() -> tuple[float, float]:
    """Milliseconds saved by the ANE that are too little by far on any chip; and enough by far."""
    far, edges = _read("model.toml")["far"], models().values()
    least = min(m.launch["ane"] + m.end["ane"] for m in edges)
    most = max(m.launch["ane"] + m.switch["ane"] + m.switch["bnns"] for m in edges)
    return least / far, most * far


_GIGA_MS = 1e6
"""Amounts a millisecond at 1 G a second."""


class Term(NamedTuple):
    """An amount at a rate; without `amount` the bytes that the rate counts."""

    rate: str
    amount: float | None = None


Terms = tuple[Term, ...]
Class = Callable[[Op, CostModel, Backend], Terms]

_DEFAULT = (Term("default"),)


def milliseconds(op: Op, backend: Backend, model: CostModel) -> float:
    """Estimated duration; the backend must support the operation."""

    def duration(term: Term) -> float:
        rate = model.rates[term.rate]
        if (speed := rate.speeds.get(backend)) is None:
            return 0.0
        amount = _AMOUNTS[rate.counts](op) if term.amount is None else term.amount
        return amount / speed / _GIGA_MS

    return max(map(duration, _CLASSES.get(op.kind, _only("default"))(op, model, backend)))


def rates_of(op: Op, model: CostModel) -> frozenset[str]:
    """Names of the rates that an operation's estimates rest on, the default left out."""
    if op.kind not in _CLASSES:
        return frozenset()
    return frozenset(term.rate for term in _CLASSES[op.kind](op, model, "bnns")) - {"default"}


def _io(op: Op) -> float:
    return sum(tensor.bytes for tensor in (*op.inputs, *op.outputs))


_AMOUNTS: Mapping[Counts, Callable[[Op], float]] = {
    "io": _io,
    "in": lambda op: 2 * sum(tensor.elements for tensor in op.inputs),
    "bytes": lambda op: sum(tensor.bytes for tensor in op.inputs),
}
"""What a rate counts; those that count `flops` are told their number."""


def _only(rate: str) -> Class:
    return lambda op, model, backend: (Term(rate),)


def _moved(first: int) -> Class:
    def terms(op: Op, model: CostModel, backend: Backend) -> Terms:
        return (Term("default", sum(t.bytes for t in (*op.inputs[:first], *op.outputs))),)

    return terms


def _pool(op: Op, model: CostModel, backend: Backend) -> Terms:
    window = math.prod(op.attributes.get("kernel_sizes", ()))
    return (Term("default"), Term("pool", float(window * _outputs(op))))


def _conv(op: Op, model: CostModel, backend: Backend) -> Terms:
    """2 x result x (Cin / groups x kernel), by the squared dilation; by flops a byte, weights in.

    A bias adds one an element. The estimator divides by the dilation, though a dilated convolution
    computes as much.
    """
    if op.weight is None:
        return _DEFAULT
    _, channels, *kernel = (extent or 1 for extent in op.weight.shape)
    dilation = math.prod(op.attributes.get("dilations", (1,)))
    flops = 2.0 * _outputs(op) * channels * math.prod(kernel) / dilation
    if op.flag("bias"):
        flops += _outputs(op)
    # A weight computed at run time is one of the inputs.
    weight = 0 if op.weight in op.inputs else op.weight.bytes
    density = flops / max(_io(op) + weight, 1)
    leaves = (leaf for leaf in ("conv-high", "conv-middle") if density >= model.thresholds[leaf])
    return (Term(next(leaves, "conv-low"), flops),)


def _conv_transpose(op: Op, model: CostModel, backend: Backend) -> Terms:
    """2 x result x (Cin x kernel / groups)."""
    if op.weight is None:
        return _DEFAULT
    channels, _, *kernel = (extent or 1 for extent in op.weight.shape)
    flops = 2.0 * _outputs(op) * channels * math.prod(kernel) / op.flag("groups", 1)
    return (Term("conv-transpose-1d" if len(kernel) == 1 else "conv-transpose", flops),)


def _linear(op: Op, model: CostModel, backend: Backend) -> Terms:
    """2 x M x K x K + N: the estimator has K, the width of the input, where N should be."""
    if op.weight is None:
        return _DEFAULT
    width, depth = (extent or 1 for extent in op.weight.shape[-2:])
    rows = sum(tensor.elements for tensor in op.inputs[:1]) / depth
    high = _outputs(op) >= model.thresholds["linear-high"]
    return (Term("linear-high" if high else "linear-low", 2.0 * rows * depth**2 + width),)


def inner(op: Op) -> int:
    """K of a matrix product, the axis it sums over."""
    shape = op.inputs[0].shape if op.inputs else ()
    if not shape:
        return 1
    return shape[-2 if op.flag("transpose_x") and len(shape) > 1 else -1] or 1


def _outputs(op: Op) -> int:
    return sum(tensor.elements for tensor in op.outputs)


_CLASSES: Mapping[str, Class] = {
    **{kind: _only(kind) for kind in ("relu", "add", "mul", "concat", "lstm", "gru", "rnn")},
    "sub": _only("add"),
    "upsample_bilinear": _only("upsample-bilinear"),
    # Axis 0 in its place is cheap; an unknown permutation counts as such.
    "transpose": lambda op, model, backend: (
        Term("transpose-batch" if op.flag("perm") else "transpose"),
    ),
    # The ANE moves what the result holds; the others read the whole table.
    "gather": lambda op, model, backend: _DEFAULT if backend == "ane" else (Term("gather"),),
    "stack": _moved(1),
    "scaled_dot_product_attention": _moved(3),  # The mask does not count.
    "matmul": lambda op, model, backend: (
        *_DEFAULT,
        Term("matmul", 2.0 * _outputs(op) * inner(op)),
    ),
    **dict.fromkeys(("avg_pool", "max_pool", "l2_pool"), _pool),
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
}


_MOVING = (
    "batch_to_space cast concat crop depth_to_space expand_dims fill gather gather_along_axis "
    "gather_nd identity pad pixel_shuffle pixel_unshuffle read_state reshape reshape_like reverse "
    "select shape slice_by_index slice_by_size slice_update sliding_windows space_to_batch "
    "space_to_depth split squeeze stack tile transpose write_state coreml_update_state"
)
MOVES = frozenset(_MOVING.split())
"""Operations that only move numbers, or convert them."""


def flops(op: Op) -> float:
    """Floating-point operations: two for each product that is summed, else one for each number.

    Moving numbers is none, nor is what gives integers alone.
    """
    if op.kind in MOVES or not any(t.dtype.startswith(("fp", "bf")) for t in op.outputs):
        return 0.0
    numbers = float(max(_outputs(op), sum(tensor.elements for tensor in op.inputs)))
    match op.kind:
        case "conv" | "linear" if op.weight:
            return 2.0 * _outputs(op) * math.prod(n or 1 for n in op.weight.shape[1:])
        case "conv_transpose" if op.weight:
            return 2.0 * op.inputs[0].elements * math.prod(n or 1 for n in op.weight.shape[1:])
        case "matmul":
            return 2.0 * _outputs(op) * inner(op)
        case "scaled_dot_product_attention" if len(op.inputs) > 1:
            *_, keys, _ = (1, *op.inputs[1].shape)
            return 4.0 * op.inputs[0].elements * (keys or 1)
    return numbers


class _Support(NamedTuple):
    """What backends take.

    Op types of which a plan is public; why a backend never takes one; element types that the ANE
    takes, by op type, under an empty one those of most; limits in elements, by name.
    """

    measured: frozenset[str]
    reasons: Mapping[tuple[str, str], str]
    types: Mapping[str, frozenset[str]]
    limits: Mapping[str, int]


@cache
def _support() -> _Support:
    file = _read("support.toml")
    never = ((e, kind) for e in file["never"] for kind in e["operations"].split())
    types = ((e, kind) for e in file["dtypes"] for kind in e.get("operations", "").split() or [""])
    return _Support(
        frozenset(file["measured"].split()),
        {(e["backend"], kind): e["reason"] for e, kind in never},
        {kind: frozenset(e["types"].split()) for e, kind in types},
        {e["name"]: e["value"] for e in file["limit"]},
    )


def limit(name: str) -> int:
    """A limit of the ANE in elements, such as `axis`, by its name in `support.toml`."""
    return _support().limits[name]


def wide_kernel(shape: Sequence[int | None]) -> str:
    """Why the ANE takes no kernel of this shape (rows, columns or columns alone); else empty."""
    if len(shape) not in (1, 2):
        return ""
    *height, width = (extent or 1 for extent in shape)
    rows = height[0] if height else 1
    name, extent, axis = "kernel side", max(rows, width), "on a side"
    if rows == 1 or width == 1:
        name, axis = ("kernel width", "wide") if rows == 1 else ("kernel height", "high")
    most = limit(name)
    return "" if extent <= most else f"a kernel of {rows}x{width}; the ANE takes {most} {axis}"


def wide_window(width: int) -> str:
    """Why the ANE takes no max_pool of this width; empty where it does."""
    most, besides = limit("max_pool width"), limit("max_pool width besides")
    wide = width > most and width != besides
    return f"max_pool {width} wide; the ANE takes {most}, or {besides}" if wide else ""


def is_measured(op: Op) -> bool:
    """Whether a plan with an operation of this type is public."""
    support = _support()
    return op.kind in support.measured or ("ane", op.kind) in support.reasons


def obstacle(op: Op, backend: Backend) -> str:
    """The limit that keeps an operation off a backend, in a sentence's part; empty for none."""
    if reason := _support().reasons.get((backend, op.kind)):
        return f"{op.kind}: {reason}"
    return next(filter(None, _limits(op)), "") if backend == "ane" else ""


def _limits(op: Op) -> Iterator[str]:
    """What is beyond each limit of the ANE, empty where it is within."""
    tensors: tuple[Tensor, ...] = (*op.inputs, *op.outputs)
    allowed = _support().types["cast" if op.kind == "cast" else ""]
    # Constant indices are compiled into the program, whatever their type.
    outside = sorted({tensor.dtype for tensor in tensors if not tensor.constant} - allowed)
    yield f"{op.kind} of {', '.join(outside)}: the ANE has no such tensors" if outside else ""
    if op.kind == "gather" and op.flag("runtime_indices"):
        yield "gather with indices computed at run time"
    if op.kind == "slice_by_size" and op.flag("runtime_begin"):
        yield "slice_by_size with a begin computed at run time"
    longest = max((extent or 0 for tensor in tensors for extent in tensor.shape), default=0)
    if longest > limit("axis"):
        yield f"an axis of {longest:,}; the ANE takes {limit('axis'):,}"
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    if rank > limit("rank"):
        yield f"a tensor of rank {rank}; the ANE takes {limit('rank')}"
    sizes = op.attributes.get("kernel_sizes", ())
    if op.kind == "conv" and op.weight is not None:
        yield wide_kernel(op.weight.shape[2:])
    elif op.kind == "max_pool" and sizes:
        yield wide_window(sizes[-1])
    elif op.kind == "matmul" and inner(op) > (most := limit("matmul depth")):
        yield f"matmul over {inner(op):,} elements; the ANE takes {most:,}"
