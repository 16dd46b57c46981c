"""Rules on element types, and on compressed and quantized weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pytest_ane.gates.placement._graph import Depends, Site
from pytest_ane.gates.placement.rules._base import AUTHORING, DISPATCH, GUIDE, OpRule, Warned, kinds
from pytest_ane.gates.placement.rules._ops import RECURRENT
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.records import Dim, DType, Operation, TensorType

_INTS = frozenset({DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})
# Ops whose integers have a rule of their own.
_INDEX_OPS = kinds(
    "argsort gather gather_along_axis gather_nd non_zero reduce_argmax reduce_argmin shape topk"
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


_BLOCKWISE = kinds("constexpr_blockwise_shift_scale constexpr_sparse_blockwise_shift_scale")
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


def _tables(site: Site) -> Iterator[tuple[Operation, tuple[Dim, ...], int]]:
    """The op, how many palettes along each axis of the weight, and the entries' vector size.

    A look-up table of iOS 18 has the weight's axes, then entries, then the vector; older ones
    have one axis and are no concern here.
    """
    for _, argument in site.arguments():
        for operation in site.compressed_by(argument):
            kind = Site(site.graph, operation).tensor("lut")
            weight = operation.outputs[0].type if operation.outputs else None
            rank = len(weight.shape) if isinstance(weight, TensorType) else 0
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


TYPES = (
    OpRule(
        id="R021",
        title="The ANE computes in fp16; ops on fp32 are never placed on it.",
        matches="any op that reads or computes fp32 or fp64 at run time, but `cast`, which the ANE "
        "takes, and what R001 names; the scale of an image input and the label of a classifier, "
        "which the converter puts at the program's boundary, are not counted",
        why=_wide,
        consequence="runs on CPU or GPU; one fp32 literal can break a whole region",
        scope="all; the same graph: fp16 140 of 140 ops on the ANE, fp32 138 of 138 on the GPU",
        source="vx-lang/Vx #173, #435, #436, #437; coreai-model-zoo #36; the compiler's message "
        f'"Invalid output tensor format: fp32"; {AUTHORING}',
        fix="convert with compute_precision=FLOAT16 and trace modules in half precision; rescale "
        "or fold a constant that fp16 cannot hold (a batch_norm into a factor and a summand)",
    ),
    OpRule(
        id="R022",
        title="int32 is no data type of the ANE.",
        matches="any op that computes int32 or int64, or reads it as data, from run-time values; "
        "gathers and ops that make indices have rules of their own",
        why=_integers,
        consequence="the op runs on the CPU; so does a cast from int32 behind it",
        scope="all; a direct compile fails on M4 and M6",
        source='the compiler\'s message "Unsupported tensor data type: int32"; '
        f"Anemll/anemll-profile, README; FluidInference/mobius, coreml-cli; {DISPATCH}",
        fix="compute positions and masks on the host and pass them as fp16, or cast at the input",
    ),
    Warned(
        id="R024",
        title="A tile of bools fails to compile for the ANE.",
        matches="`tile` of a bool",
        ops=kinds("tile"),
        why=lambda site: (
            "It tiles a bool." if any(k.dtype is DType.BOOL for k in site.inputs()) else None
        ),
        grade="B",
        consequence="ANE compile error",
        scope="M3 Max",
        source="roboflow/rf-detr PR #1495",
        fix="cast to fp16 before the tile, or broadcast in the op that follows",
    ),
    Warned(
        id="R026",
        title="bf16 is not supported on the ANE.",
        matches="any op that reads or computes bf16 at run time",
        why=lambda site: (
            "It reads or computes bf16."
            if any(k.dtype is DType.BF16 for k in (*site.outputs(), *site.inputs()))
            else None
        ),
        grade="B",
        consequence="runs on CPU or GPU",
        source=GUIDE,
        fix="convert with compute_precision=FLOAT16",
    ),
    OpRule(
        id="R104",
        title="The ANE gives no int8 output.",
        matches="`cast` or `quantize` to int8 whose result is an output of the program",
        ops=kinds("cast quantize"),
        why=_int8_output,
        scope="M4; Core ML puts a cast to int32 before such an output",
        source=DISPATCH,
        fix="return fp16 and convert on the host",
    ),
)
COMPRESSED = (
    OpRule(
        id="R064",
        title="The ANE accepts scales per output channel or per tensor, not per block.",
        matches="any op fed by `constexpr_blockwise_shift_scale` (or its sparse form) whose "
        "`scale` has several elements along an axis other than the output channels",
        why=_per_block,
        consequence="every consumer runs on the CPU in small and medium graphs; wrong values "
        "(cosine 0.367) where it was accepted",
        scope="M series on macOS 15 to 27, iPhone on iOS 27; one 24-layer stateful int4 model is "
        "reported on the ANE",
        source="coremltools #2510; videlalvaro/ane-book@4ab89e2, research/INT4_SHARD_ANE_BUG.md; "
        "coreai-models #205, #279; the compiler's message \"ANE only support "
        'per-cout/per-tensor quantization"',
        fix="use per-channel scales, or a palette with granularity per_grouped_channel",
    ),
    OpRule(
        id="R069",
        title="A palette with per-channel scales aborts when it is loaded.",
        matches="any op fed by `constexpr_lut_to_dense` together with a "
        "`constexpr_blockwise_shift_scale` whose `data` is float, in either order",
        why=_scaled_palette,
        whole=True,
        consequence="the process aborts at load: \"'mps.dequantize' op operand #2 must be tensor "
        'of quantized values"',
        scope="macOS 26, M4",
        source="coremltools PR #2688, #2716; john-rocky/CoreML-LLM (qwen3vl)",
        fix="palettize with enable_per_channel_scale=False",
    ),
    Warned(
        id="R068",
        title="Palettes for blocks of rows and columns are not accepted.",
        matches="any op fed by `constexpr_lut_to_dense` with several palettes along two axes",
        why=_along_two_axes,
        grade="B",
        consequence="loads, then fails with -14",
        scope="Mac, iOS 18 and 26; one project, three variants",
        source="john-rocky/CoreML-LLM@72178c6, docs/TERNARY_BONSAI.md",
        fix="group along one axis (granularity per_grouped_channel)",
    ),
    Warned(
        id="R070",
        title="Vector palettes have entries of 1, 2, 4 or 5 elements.",
        matches="any op fed by `constexpr_lut_to_dense` whose entries have another size",
        why=_odd_vector,
        grade="C",
        consequence="ANE compile error",
        scope="one guide",
        source=GUIDE,
        fix="choose cluster_dim 1, 2 or 4",
    ),
    Warned(
        id="R071",
        title="Quantized activations compile on Macs and fail on an iPhone.",
        ops=kinds("quantize"),
        grade="B",
        consequence="ANE compile error on A19 Pro, while M4 takes the same model",
        scope="A19 Pro on iOS 26; on M4 1,339 of 1,412 ops on the ANE",
        source="john-rocky/CoreML-LLM@72178c6, docs/SESSION_2026_04_26_W4A8_HOLD.md; "
        "onnxsim/onnxsim, scripts/apple/README.md",
        fix="compress weights only, or ship a model for each device",
    ),
)
