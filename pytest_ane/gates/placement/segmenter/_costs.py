"""Estimated duration of an operation on each backend, as Core ML's segmenter computes it.

A function per class of operations gives amounts (bytes or floating-point operations) and the names
of the rates they are divided by; the slowest of several counts. The rates, with source and
certainty, are in `model.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

from pytest_ane.gates.placement.segmenter._records import Backend, Op, Tensor
from pytest_ane.manifest.base import loads
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.mlprogram.text import printable

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
