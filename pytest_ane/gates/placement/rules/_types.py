"""Rules on element types, and on compressed and quantized weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pytest_ane.gates.placement._graph import Depends, Site
from pytest_ane.gates.placement.rules._base import Why
from pytest_ane.gates.placement.rules._ops import RECURRENT
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.records import Dim, DType, Operation, TensorType

_INTS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
# Ops whose integers have a rule of their own.
_INDEX_OPS = frozenset(
    {"argsort", "non_zero", "reduce_argmax", "reduce_argmin", "shape", "topk"}
    | {"gather", "gather_along_axis", "gather_nd"}
)
_DATA = ("x", "y", "a", "b", "values")
_WIDE = frozenset({DType.FP32, DType.FP64})
_INFINITE = 1e38
_FP16_ONLY = "the ANE computes in fp16 only."
_MOST = 1 << 16
"""Elements of a constant that is looked at: biases and statistics, not weights."""


def _wide(site: Site) -> str | None:
    # No precision helps a recurrent op; the ANE takes casts; `shape` reads no element.
    if site.op in RECURRENT or site.op in ("cast", "shape"):
        return None
    for does, kinds_ in (("computes", site.outputs()), ("reads", site.inputs())):
        for kind in kinds_:
            if kind.dtype in _WIDE:
                return f"It {does} {kind.dtype}{_too_large(site)}, and {_FP16_ONLY}"
    return None


def _too_large(site: Site) -> str:
    """Why coremltools left an op in fp32: a constant that fp16 cannot hold.

    Infinite in fp16 is what is meant from 1e38 on (`fp16_overflow` in
    converters/mil/mil/passes/defs/quantization.py of coremltools 9.0).
    """
    for parameter, argument in site.arguments():
        kind = site.graph.tensor(argument)
        if kind is None or kind.dtype not in _WIDE or math.prod(d or 0 for d in kind.shape) > _MOST:
            continue
        array = site.graph.array(argument)
        sizes = np.abs(array[np.abs(array) < _INFINITE]) if array is not None else np.zeros(0)
        if sizes.size and (largest := sizes.max()) > fp16.MAX:
            return f", as its {parameter} of up to {largest:,.0f} is beyond fp16's 65,504"
    return ""


def _integers(site: Site) -> str | None:
    """Run-time values only: integers that follow a flexible input's shape cost nothing."""
    if site.op in _INDEX_OPS:
        return None
    for parameter in _DATA:
        for argument in site.operation.inputs.get(parameter, ()):
            kind = site.graph.tensor(argument)
            runtime = site.graph.origin(argument).values == Depends.VALUES
            if kind and runtime and kind.dtype in _INTS:
                return f"It reads {kind.dtype}, which is no data type of the ANE."
    values = (site.graph.origin(argument).values for _, argument in site.arguments())
    if max(values, default=0) == Depends.VALUES and any(k.dtype in _INTS for k in site.outputs()):
        return "It computes integers of 32 bits or more, which are no data type of the ANE."
    return None


def _int8_output(site: Site) -> str | None:
    outputs = (out for out in site.operation.outputs if out.name in site.graph.outputs)
    int8 = (o for o in outputs if isinstance(o.type, TensorType) and o.type.dtype is DType.INT8)
    says = "Its result `{}` is an output of the program, as int8."
    return next((says.format(out.name) for out in int8), None)


_BLOCKWISE = frozenset(
    {"constexpr_blockwise_shift_scale", "constexpr_sparse_blockwise_shift_scale"}
)
_PALETTES = frozenset({"constexpr_lut_to_dense", "constexpr_lut_to_sparse"})
_VECTORS = frozenset({1, 2, 4, 5})
_FLOATS = frozenset({DType.FP16, DType.FP32})


def _scaled(site: Site) -> Iterator[tuple[str, Operation, bool]]:
    """The parameter, the op that scales its weight, and whether it scales a palette's floats.

    `enable_per_channel_scale` puts the scale behind the palette; coremltools' passes move it
    before, onto the look-up table. Scales of integers are quantization, palette or not.
    """
    for parameter, argument in site.arguments():
        behind = tuple(site.compressed_by(argument))
        palette = any(operation.op in _PALETTES for operation in behind)
        for operation in behind:
            if operation.op in _BLOCKWISE:
                scaled = Site(site.graph, operation)
                kind = scaled.tensor("data") or scaled.tensor("nonzero_data")
                floats = kind is not None and kind.dtype in _FLOATS
                yield parameter, operation, palette and floats


def _output_axis(site: Site, parameter: str, rank: int) -> int | None:
    """The axis of a weight that runs over the consumer's outputs; `None` where unknown."""
    match site.op, parameter:
        case (("conv" | "linear"), "weight"):
            return 0
        case "conv_transpose", "weight":
            return 1
        case "matmul", "y":
            return rank - 2 if any(site.integers("transpose_y")) else rank - 1
        case "matmul", "x":
            return rank - 1 if any(site.integers("transpose_x")) else rank - 2
    return None


def _per_block(site: Site) -> str | None:
    for parameter, operation, palette in _scaled(site):
        scale = Site(site.graph, operation).tensor("scale")
        if palette or scale is None:
            continue
        along = {axis: count for axis, count in enumerate(scale.shape) if count != 1}
        output = _output_axis(site, parameter, len(scale.shape))
        blocks = {axis: count for axis, count in along.items() if axis != output}
        # A consumer without an output axis may have scales along any one axis.
        if blocks and (output is not None or len(along) > 1):
            axis, count = max(blocks.items())
            return (
                f"Its {parameter} `{operation.name}` has {count} scales along axis {axis}; "
                "the ANE takes them per output channel or per tensor only."
            )
    return None


def _scaled_palette(site: Site) -> str | None:
    says = "is a palette with scales of its own, which Core ML lowers to a dequantize of fp16."
    scaled = (f"Its {name} `{op.name}` {says}" for name, op, palette in _scaled(site) if palette)
    return next(scaled, None)


def _rank(operation: Operation) -> int:
    weight = operation.outputs[0].type if operation.outputs else None
    return len(weight.shape) if isinstance(weight, TensorType) else 0


def _tables(site: Site) -> Iterator[tuple[Operation, tuple[Dim, ...], int]]:
    """The op, how many palettes along each axis of the weight, and the entries' vector size.

    A look-up table of iOS 18 has the weight's axes, then entries, then the vector; older ones
    have one axis and are no concern here.
    """
    for _, argument in site.arguments():
        for operation in site.compressed_by(argument):
            kind, rank = Site(site.graph, operation).tensor("lut"), _rank(operation)
            if kind and rank and len(kind.shape) == rank + 2:
                yield operation, kind.shape[:-2], kind.shape[-1] or 1


def _along_two_axes(site: Site) -> str | None:
    for operation, groups, _ in _tables(site):
        if sum(count != 1 for count in groups) > 1:
            along = "x".join(str(count) for count in groups if count != 1)
            return f"`{operation.name}` has {along} palettes, along more than one axis."
    return None


def _odd_vector(site: Site) -> str | None:
    odd = ((op, size) for op, _, size in _tables(site) if size not in _VECTORS)
    says = "The palette `{}` has entries of {} elements."
    return next((says.format(op.name, size) for op, size in odd), None)


WHY: dict[str, Why] = {
    "R021": _wide,
    "R022": _integers,
    "R024": lambda site: (
        "It tiles a bool." if any(k.dtype is DType.BOOL for k in site.inputs()) else None
    ),
    "R026": lambda site: (
        "It reads or computes bf16."
        if any(k.dtype is DType.BF16 for k in (*site.outputs(), *site.inputs()))
        else None
    ),
    "R104": _int8_output,
    "R064": _per_block,
    "R069": _scaled_palette,
    "R068": _along_two_axes,
    "R070": _odd_vector,
}
