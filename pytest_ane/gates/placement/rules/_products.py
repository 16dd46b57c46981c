"""Rules on convolutions, matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ane.gates.placement._graph import Site
from pytest_ane.gates.placement.rules._base import AUTHORING, DISPATCH, GUIDE, OpRule, Warned, kinds
from pytest_ane.gates.placement.segmenter._costs import limit, wide_kernel, wide_window
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.records import Ref, TensorType

_CONV = frozenset({"conv"})
_PALETTE_OF_4_BITS = 16


def _kernel(weight: TensorType | None) -> str | None:
    reason = wide_kernel(weight.shape[2:]) if weight else ""
    return f"It has {reason}." if reason else None


def _window(sizes: Sequence[int]) -> str | None:
    reason = wide_window(sizes[-1]) if sizes else ""
    return f"It is a {reason}." if reason else None


def _strides(site: Site) -> str | None:
    strides = site.integers("strides")
    written = "x".join(map(str, strides))
    if any(_rest(stride) > 1 for stride in strides):
        return f"Its strides are {written}; those of factors 2 and 3 cost least."
    large = {stride for stride in strides if stride > 2}
    if len(large) > 1:
        return f"Its strides are {written}: large, and not equal."
    weight = site.argument("weight")
    palettes = () if weight is None else site.compressed_by(weight)
    if large and any("lut" in operation.op for operation in palettes):
        return f"Its strides are {written} with a palette, which goes with 2 at most."
    return None


def _rest(number: int) -> int:
    for factor in (2, 3):
        while number and number % factor == 0:
            number //= factor
    return number


def _runtime_weight(site: Site) -> str | None:
    weight = site.argument("weight")
    if weight is None or not site.depends("weight") or any(site.compressed_by(weight)):
        return None
    return "Its weight is computed at run time."


def _palettized_depthwise(site: Site) -> str | None:
    weight, argument = site.tensor("weight"), site.argument("weight")
    if weight is None or argument is None or len(weight.shape) < 3 or weight.shape[1] != 1:
        return None
    groups = site.integers("groups")
    for operation in site.compressed_by(argument) if len(groups) == 1 and groups[0] > 1 else ():
        lut = Site(site.graph, operation).tensor("lut")
        if lut and len(lut.shape) >= 2 and lut.shape[-2] == _PALETTE_OF_4_BITS:
            return f"Its depthwise weight `{operation.name}` is a 4-bit palette."
    return None


_CONSTANT_DEPTH = 16_384


def _rank_5(site: Site) -> str | None:
    if max((len(kind.shape) for kind in site.inputs()), default=0) != 5:
        return None
    if site.op == "linear":
        return "Its input has rank 5; `linear` takes 4 at most."
    return "It multiplies tensors of rank 5."


def _deep(site: Site, most: int, *, constant: bool) -> str | None:
    kind, other = site.tensor("x"), "weight" if site.op == "linear" else "y"
    if kind is None or site.argument(other) is None or constant == bool(site.depends(other)):
        return None
    across = -2 if any(site.integers("transpose_x")) and len(kind.shape) > 1 else -1
    depth = kind.shape[across] if kind.shape else None
    if depth is None or depth <= most:
        return None
    return f"It sums over {depth:,} elements; the ANE takes a depth of {most:,} at most."


_FILLS = {
    "add": ("x", "y"),
    "fill": ("value",),
    "scaled_dot_product_attention": ("attn_mask",),
    "select": ("a", "b"),
}


def _ignored_mask(site: Site) -> str | None:
    mask = site.argument("attn_mask")
    while mask is not None and (producer := site.graph.producer(mask)) and producer.op == "cast":
        if isinstance(mask, Ref) and mask.name in site.graph.ineligible:
            break
        mask = next(iter(producer.inputs.get("x", ())), None)
    if not isinstance(mask, Ref):
        return None
    if mask.name in site.graph.inputs:
        origin = f"the function's input `{mask.name}`"
    elif mask.name in site.graph.ineligible:
        origin = f"`{mask.name}`, which is computed off the ANE"
    else:
        return None
    return f"Its attn_mask is {origin}; the ANE's fused attention then ignores the mask."


def _infinite_fill(site: Site) -> str | None:
    for parameter in _FILLS[site.op]:
        argument = site.argument(parameter)
        array = None if argument is None else site.graph.array(argument)
        if array is None or array.dtype.kind != "f":
            continue
        low = array[array <= -fp16.MAX]
        if low.size:
            return f"Its {parameter} holds {float(low.min()):g}; the ANE needs a finite mask."
    return None


CONVOLUTIONS = (
    OpRule(
        id="R035",
        title="Wide convolution kernels exceed what the ANE takes.",
        matches="`conv` by a kernel of one row and more than 15 columns, one column and more than "
        "31 rows, or more than 16 rows or columns of several",
        ops=_CONV,
        why=lambda site: _kernel(site.tensor("weight")),
        scope="M4 and M6; on M1 width 13, height 29. 16x16 takes minutes to compile",
        source=f"{DISPATCH}; {GUIDE}; aneforge 0.4.0, _targets.py (16 and more fail on M5)",
        fix="split the kernel into narrower ones and add, or lay it out as a matmul over frames",
    ),
    Warned(
        id="R038",
        title="A convolution whose weight is computed at run time may crash, or ignore it.",
        matches="`conv` whose `weight` is not constant",
        ops=_CONV,
        why=_runtime_weight,
        grade="B",
        consequence="the compiler crashes at a batch of 2 and more, or the weight is ignored",
        scope="M3 Max, M5; Core ML on an M4 places it on the ANE, its values unchecked",
        source=f"skyfallsin/apple-neural-engine-field-guide; {GUIDE}; {DISPATCH}",
        fix="write it as a matmul of two activations",
    ),
    Warned(
        id="R073",
        title="A depthwise convolution with a 4-bit palette fails on the ANE.",
        matches="`conv` with `groups` above 1 and one input channel per group, fed by a palette of "
        "16 entries",
        ops=_CONV,
        why=_palettized_depthwise,
        grade="B",
        consequence="ANE compile error",
        scope="M series",
        source="john-rocky/CoreML-LLM@72178c6, docs/LFM2_CONVERSION_FINDINGS.md",
        fix="leave depthwise weights in fp16; they are small",
    ),
    OpRule(
        id="R106",
        title="A max_pool is 8 columns wide at most, or 32.",
        matches="`max_pool` whose kernel is wider than 8, except 32",
        ops=kinds("max_pool"),
        why=lambda site: _window(site.integers("kernel_sizes")),
        scope="M4; the compiler's message names the widths, a height of 9 is fine",
        source=DISPATCH,
        fix="pool twice with narrower kernels, or transpose so that the long side is the height",
    ),
    Warned(
        id="R108",
        title="Strides of a convolution cost least with the factors 2 and 3.",
        matches="`conv` with a stride that another prime divides, with two strides above 2 that "
        "differ, or with a stride above 2 and a palette",
        ops=_CONV,
        why=_strides,
        consequence="runs with overhead",
        scope="all; an M4 takes strides from 2 to 8",
        source=f"{AUTHORING}; {DISPATCH}",
        fix="use equal strides such as 4, 6, 8, 9, 12 or 16, or one of 2 with 3, 4, 8 or 9",
    ),
    Warned(
        id="R109",
        title="Pools cost least with strides of 2 or 4.",
        matches="`avg_pool`, `l2_pool`, `max_pool` with another stride than 1, 2 and 4",
        ops=kinds("avg_pool l2_pool max_pool"),
        why=lambda site: (
            f"Its strides are {'x'.join(map(str, strides))}; 2 and 4 cost least."
            if not set(strides := site.integers("strides")) <= {1, 2, 4}
            else None
        ),
        consequence="runs with overhead",
        source=AUTHORING,
        fix="use a stride of 2 or 4; a pool over a whole axis is a reduce_mean or reduce_max",
    ),
)
MATMULS = (
    Warned(
        id="R028",
        title="A matmul of rank 5 is placed on the CPU.",
        matches="`matmul` that reads a run-time tensor of rank 5",
        ops=kinds("matmul"),
        why=_rank_5,
        grade="B",
        scope="M4, A18",
        source="john-rocky/CoreML-LLM@72178c6, docs/",
        fix="merge the batch axes, so that the product has rank 4",
    ),
    Warned(
        id="R029",
        title="`linear` takes inputs of rank 4 at most.",
        matches="`linear` that reads a run-time tensor of rank 5",
        ops=kinds("linear"),
        why=_rank_5,
        grade="B",
        source=GUIDE,
        fix="merge the batch axes before it",
    ),
    OpRule(
        id="R031",
        title="A product of two run-time tensors is taken up to a depth of 32,768.",
        matches="`matmul` of two run-time tensors that sums over more than 32,768 elements",
        ops=kinds("matmul"),
        why=lambda site: _deep(site, limit("matmul depth"), constant=False),
        scope="M4: 32,768 is fine, 40,000 fails",
        source=DISPATCH,
        fix="split the sum into parts and add",
    ),
    Warned(
        id="R031",
        title="A product by a constant is taken up to a depth of 16,384.",
        matches="`linear`, or `matmul` by a constant, that sums over more than 16,384 elements",
        ops=kinds("linear matmul"),
        why=lambda site: _deep(site, _CONSTANT_DEPTH, constant=True),
        grade="B",
        scope="M series, macOS 15; the channels of a convolution may be more",
        source="chrishayuk/larql PR #312; ONNX Runtime's Core ML provider (\"does not support "
        'input dim > 16384")',
        fix="split the sum into parts and add, or write it as a 1x1 convolution",
    ),
)
ATTENTION = (
    OpRule(
        id="R049",
        title="The ANE's fused attention ignores a mask that comes from outside.",
        matches="`scaled_dot_product_attention` whose `attn_mask` is a function's input (also "
        "through `cast`) or computed by an ineligible op",
        ops=kinds("scaled_dot_product_attention"),
        why=_ignored_mask,
        consequence="silently wrong values (cosine 0.87 to 0.975), equal to attention without a "
        "mask",
        scope="M1 Max on macOS 27, 22 of 22 ops; coremltools 9",
        source="sidekick DECISIONS.md D25 (bisected); maderix/ANE notes agree",
        fix="write attention as matmul, add, softmax, matmul",
    ),
    Warned(
        id="R052",
        title="Masks of -inf or of fp16's lowest number give NaN and push attention off the ANE.",
        matches="`select`, `add`, `fill` or `attn_mask` with a constant that holds -65504 or less",
        ops=frozenset(_FILLS),
        why=_infinite_fill,
        consequence="NaN, or attention on the CPU",
        source="FluidInference/FluidAudio, Documentation/ANE_Candidates.md; "
        f"john-rocky/CoreML-LLM@72178c6, docs/; sidekick CONVERTING.md; {AUTHORING}",
        fix="use a finite mask of -1e4 to -6e4 (Apple: -4e4)",
    ),
)
