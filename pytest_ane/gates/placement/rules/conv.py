"""Convolutions and pools that the Neural Engine takes badly, or not at all."""

from __future__ import annotations

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import AUTHORING, DISPATCH, OpRule
from pytest_ane.gates.placement.segmenter.support import wide_kernel, wide_window
from pytest_ane.mlprogram.records import TensorType

_GUIDE = "sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)"
_CONV = frozenset({"conv"})
_PALETTE_OF_4_BITS = 16


def _weight(site: Site) -> TensorType | None:
    argument = site.argument("weight")
    return None if argument is None else site.graph.tensor(argument)


def _wide_kernel(site: Site) -> str | None:
    weight = _weight(site)
    reason = wide_kernel(weight.shape[2:]) if weight else ""
    return f"It has {reason}." if reason else None


def _integers(site: Site, parameter: str) -> tuple[int, ...]:
    argument = site.argument(parameter)
    array = None if argument is None else site.graph.array(argument)
    return () if array is None else tuple(int(number) for number in array.ravel())


def _wide_window(site: Site) -> str | None:
    sizes = _integers(site, "kernel_sizes")
    reason = wide_window(sizes[-1]) if sizes else ""
    return f"It is a {reason}." if reason else None


def _strides(site: Site) -> str | None:
    strides = _integers(site, "strides")
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
    """What remains of a number without its factors 2 and 3."""
    for factor in (2, 3):
        while number and number % factor == 0:
            number //= factor
    return number


def _pool_strides(site: Site) -> str | None:
    strides = _integers(site, "strides")
    if set(strides) <= {1, 2, 4}:
        return None
    return f"Its strides are {'x'.join(map(str, strides))}; 2 and 4 cost least."


def _runtime_weight(site: Site) -> str | None:
    weight = site.argument("weight")
    if weight is None or site.graph.origin(weight).values == Depends.NOTHING:
        return None
    if any(site.compressed_by(weight)):
        return None
    return "Its weight is computed at run time."


def _palettized_depthwise(site: Site) -> str | None:
    weight, argument = _weight(site), site.argument("weight")
    if weight is None or argument is None or len(weight.shape) < 3 or weight.shape[1] != 1:
        return None
    groups = site.argument("groups")
    array = None if groups is None else site.graph.array(groups)
    if array is None or array.size != 1 or int(array.ravel()[0]) < 2:
        return None
    for operation in site.compressed_by(argument):
        lut = next(iter(operation.inputs.get("lut", ())), None)
        kind = None if lut is None else site.graph.tensor(lut)
        if kind and len(kind.shape) >= 2 and kind.shape[-2] == _PALETTE_OF_4_BITS:
            return f"Its depthwise weight `{operation.name}` is a 4-bit palette."
    return None


RULES = (
    OpRule(
        id="R035",
        title="Wide convolution kernels exceed what the ANE takes.",
        matches="`conv` by a kernel of one row and more than 15 columns, one column and more than "
        "31 rows, or more than 16 rows or columns of several",
        ops=_CONV,
        why=_wide_kernel,
        consequence="runs on the CPU",
        scope="M4 and M6; on M1 width 13, height 29. 16x16 takes minutes to compile",
        source=f"{DISPATCH}; {_GUIDE}; aneforge 0.4.0, _targets.py (16 and more fail on M5)",
        fix="split the kernel into narrower ones and add, or lay it out as a matmul over frames",
    ),
    OpRule(
        id="R038",
        title="A convolution whose weight is computed at run time may crash, or ignore it.",
        matches="`conv` whose `weight` is not constant",
        ops=_CONV,
        why=_runtime_weight,
        outcome="warned",
        grade="B",
        consequence="the compiler crashes at a batch of 2 and more, or the weight is ignored",
        scope="M3 Max, M5; Core ML on an M4 places it on the ANE, its values unchecked",
        source=f"skyfallsin/apple-neural-engine-field-guide; {_GUIDE}; {DISPATCH}",
        fix="write it as a matmul of two activations",
    ),
    OpRule(
        id="R073",
        title="A depthwise convolution with a 4-bit palette fails on the ANE.",
        matches="`conv` with `groups` above 1 and one input channel per group, fed by a palette of "
        "16 entries",
        ops=_CONV,
        why=_palettized_depthwise,
        outcome="warned",
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
        ops=frozenset({"max_pool"}),
        why=_wide_window,
        consequence="runs on the CPU",
        scope="M4; the compiler's message names the widths, a height of 9 is fine",
        source=DISPATCH,
        fix="pool twice with narrower kernels, or transpose so that the long side is the height",
    ),
    OpRule(
        id="R108",
        title="Strides of a convolution cost least with the factors 2 and 3.",
        matches="`conv` with a stride that another prime divides, with two strides above 2 that "
        "differ, or with a stride above 2 and a palette",
        ops=_CONV,
        why=_strides,
        outcome="warned",
        consequence="runs with overhead",
        scope="all; an M4 takes strides from 2 to 8",
        source=f"{AUTHORING}; {DISPATCH}",
        fix="use equal strides such as 4, 6, 8, 9, 12 or 16, or one of 2 with 3, 4, 8 or 9",
    ),
    OpRule(
        id="R109",
        title="Pools cost least with strides of 2 or 4.",
        matches="`avg_pool`, `l2_pool`, `max_pool` with another stride than 1, 2 and 4",
        ops=frozenset({"avg_pool", "l2_pool", "max_pool"}),
        why=_pool_strides,
        outcome="warned",
        consequence="runs with overhead",
        scope="all",
        source=AUTHORING,
        fix="use a stride of 2 or 4; a pool over a whole axis is a reduce_mean or reduce_max",
    ),
)
