"""Estimated duration of an operation on each backend, as Core ML's segmenter computes it.

A function per class of operations gives amounts (bytes or floating-point operations) and the names
of the rates they are divided by; the rates are in `model.toml`. The slowest of several counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pytest_ane.gates.placement.segmenter.model import CostModel, Counts
from pytest_ane.gates.placement.segmenter.records import Backend, Op

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
    terms = _CLASSES.get(op.kind, _default)(op, model, backend)
    return max(_duration(op, backend, model, term) for term in terms)


def rates_of(op: Op, model: CostModel) -> frozenset[str]:
    """Names of the rates that an operation's estimates rest on, the default left out."""
    if op.kind not in _CLASSES:
        return frozenset()
    terms = _CLASSES[op.kind](op, model, "bnns")
    return frozenset(term.rate for term in terms) - {"default"}


def _duration(op: Op, backend: Backend, model: CostModel, term: Term) -> float:
    rate = model.rates[term.rate]
    speed = rate.on(backend)
    if speed is None:
        return 0.0
    amount = _AMOUNTS[rate.counts](op) if term.amount is None else term.amount
    return amount / speed / _GIGA_MS


def _io(op: Op) -> float:
    return sum(tensor.bytes for tensor in (*op.inputs, *op.outputs))


def _halves(op: Op) -> float:
    return 2 * sum(tensor.elements for tensor in op.inputs)


def _bytes(op: Op) -> float:
    return sum(tensor.bytes for tensor in op.inputs)


def _no_flops(op: Op) -> float:
    raise AssertionError(f"{op.kind}: a rate that counts flops needs their number")


_AMOUNTS: Mapping[Counts, Callable[[Op], float]] = {
    "io": _io,
    "in": _halves,
    "bytes": _bytes,
    "flops": _no_flops,
}


def _default(op: Op, model: CostModel, backend: Backend) -> Terms:
    return _DEFAULT


def _only(rate: str) -> Class:
    return lambda op, model, backend: (Term(rate),)


def _transpose(op: Op, model: CostModel, backend: Backend) -> Terms:
    """Axis 0 in its place is cheap; an unknown permutation counts as such."""
    return (Term("transpose-batch" if op.flag("perm") else "transpose"),)


def _gather(op: Op, model: CostModel, backend: Backend) -> Terms:
    """The ANE moves what the result holds; the others read the whole table."""
    return _DEFAULT if backend == "ane" else (Term("gather"),)


def _stack(op: Op, model: CostModel, backend: Backend) -> Terms:
    """One of the inputs counts."""
    counted = sum(tensor.bytes for tensor in (*op.inputs[:1], *op.outputs))
    return (Term("default", counted),)


def _attention(op: Op, model: CostModel, backend: Backend) -> Terms:
    """Query, key, value and the result; not the mask."""
    counted = sum(tensor.bytes for tensor in (*op.inputs[:3], *op.outputs))
    return (Term("default", counted),)


def _matmul(op: Op, model: CostModel, backend: Backend) -> Terms:
    return (Term("default"), Term("matmul", 2.0 * _outputs(op) * inner(op)))


def _pool(op: Op, model: CostModel, backend: Backend) -> Terms:
    return (Term("default"), Term("pool", float(math.prod(_kernel(op)) * _outputs(op))))


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
    for leaf in ("conv-high", "conv-middle"):
        if density >= model.thresholds[leaf]:
            return (Term(leaf, flops),)
    return (Term("conv-low", flops),)


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


def _kernel(op: Op) -> tuple[int, ...]:
    return op.attributes.get("kernel_sizes", ())


_CLASSES: Mapping[str, Class] = {
    "relu": _only("relu"),
    "add": _only("add"),
    "sub": _only("add"),
    "mul": _only("mul"),
    "concat": _only("concat"),
    "transpose": _transpose,
    "upsample_bilinear": _only("upsample-bilinear"),
    "gather": _gather,
    "stack": _stack,
    "scaled_dot_product_attention": _attention,
    "matmul": _matmul,
    "avg_pool": _pool,
    "max_pool": _pool,
    "l2_pool": _pool,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "linear": _linear,
    "lstm": _only("lstm"),
    "gru": _only("gru"),
    "rnn": _only("rnn"),
}
