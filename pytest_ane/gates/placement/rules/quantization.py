"""Compressed weights that the Neural Engine does not expand, or some devices refuse."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ane.gates.placement.graph import Site
from pytest_ane.gates.placement.rules.base import OpRule
from pytest_ane.mlprogram.records import Dim, DType, Operation, TensorType

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
                yield parameter, operation, palette and _is_float(site, operation)


def _is_float(site: Site, operation: Operation) -> bool:
    kind = _type(site, operation, "data") or _type(site, operation, "nonzero_data")
    return kind is not None and kind.dtype in _FLOATS


def _type(site: Site, operation: Operation, parameter: str) -> TensorType | None:
    given = next(iter(operation.inputs.get(parameter, ())), None)
    return None if given is None else site.graph.tensor(given)


def _flag(site: Site, parameter: str) -> bool:
    return any(site.flags(parameter))


def _output_axis(site: Site, parameter: str, rank: int) -> int | None:
    """The axis of a weight that runs over the consumer's outputs; `None` where unknown."""
    match site.op, parameter:
        case (("conv" | "linear"), "weight"):
            return 0
        case "conv_transpose", "weight":
            return 1
        case "matmul", "y":
            return rank - 2 if _flag(site, "transpose_y") else rank - 1
        case "matmul", "x":
            return rank - 1 if _flag(site, "transpose_x") else rank - 2
    return None


def _per_block(site: Site) -> str | None:
    for parameter, operation, palette in _scaled(site):
        scale = _type(site, operation, "scale")
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
    for parameter, operation, palette in _scaled(site):
        if palette:
            return (
                f"Its {parameter} `{operation.name}` is a palette with scales of its own, "
                "which Core ML lowers to a dequantize of fp16."
            )
    return None


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
            lut = next(iter(operation.inputs.get("lut", ())), None)
            kind = None if lut is None else site.graph.tensor(lut)
            rank = _rank(operation)
            if kind and rank and len(kind.shape) == rank + 2:
                yield operation, kind.shape[:-2], kind.shape[-1] or 1


def _along_two_axes(site: Site) -> str | None:
    for operation, groups, _ in _tables(site):
        if sum(count != 1 for count in groups) > 1:
            along = "x".join(str(count) for count in groups if count != 1)
            return f"`{operation.name}` has {along} palettes, along more than one axis."
    return None


def _odd_vector(site: Site) -> str | None:
    for operation, _, size in _tables(site):
        if size not in _VECTORS:
            return f"The palette `{operation.name}` has entries of {size} elements."
    return None


RULES = (
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
        consequence="the process aborts at load: \"'mps.dequantize' op operand #2 must be tensor "
        'of quantized values"',
        scope="macOS 26, M4",
        source="coremltools PR #2688, #2716; john-rocky/CoreML-LLM (qwen3vl)",
        fix="palettize with enable_per_channel_scale=False",
    ),
    OpRule(
        id="R068",
        title="Palettes for blocks of rows and columns are not accepted.",
        matches="any op fed by `constexpr_lut_to_dense` with several palettes along two axes",
        why=_along_two_axes,
        outcome="warned",
        grade="B",
        consequence="loads, then fails with -14",
        scope="Mac, iOS 18 and 26; one project, three variants",
        source="john-rocky/CoreML-LLM@72178c6, docs/TERNARY_BONSAI.md",
        fix="group along one axis (granularity per_grouped_channel)",
    ),
    OpRule(
        id="R070",
        title="Vector palettes have entries of 1, 2, 4 or 5 elements.",
        matches="any op fed by `constexpr_lut_to_dense` whose entries have another size",
        why=_odd_vector,
        outcome="warned",
        grade="C",
        consequence="ANE compile error",
        scope="one guide",
        source="sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)",
        fix="choose cluster_dim 1, 2 or 4",
    ),
    OpRule(
        id="R071",
        title="Quantized activations compile on Macs and fail on an iPhone.",
        ops=frozenset({"quantize"}),
        outcome="warned",
        grade="B",
        consequence="ANE compile error on A19 Pro, while M4 takes the same model",
        scope="A19 Pro on iOS 26; on M4 1,339 of 1,412 ops on the ANE",
        source="john-rocky/CoreML-LLM@72178c6, docs/SESSION_2026_04_26_W4A8_HOLD.md; "
        "onnxsim/onnxsim, scripts/apple/README.md",
        fix="compress weights only, or ship a model for each device",
    ),
)
