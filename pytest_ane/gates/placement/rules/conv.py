"""Convolutions that the Neural Engine takes badly, or not at all."""

from __future__ import annotations

from pytest_ane.gates.placement.graph import Depends, Site
from pytest_ane.gates.placement.rules.base import OpRule
from pytest_ane.mil.records import TensorType

_GUIDE = "sbryngelson/ane-guide@9eb1afe, appendix A and chapter 17 (arXiv 2606.22283)"
_SWEEP = "aneforge 0.4.0 full_mil_vocabulary_sweep.json (M5 Pro)"
_CONV = frozenset({"conv"})
_KERNEL_HEIGHT, _KERNEL_WIDTH = 32, 15
_PALETTE_OF_4_BITS = 16


def _weight(site: Site) -> TensorType | None:
    argument = site.argument("weight")
    return None if argument is None else site.graph.tensor(argument)


def _three_axes(site: Site) -> str | None:
    x = site.argument("x")
    kind = None if x is None else site.graph.tensor(x)
    if kind is None or len(kind.shape) < 5:
        return None
    return f"It convolves {kind} along three axes."


def _wide_kernel(site: Site) -> str | None:
    weight = _weight(site)
    if weight is None or len(weight.shape) not in (3, 4):
        return None
    *height, width = weight.shape[2:]
    if (width or 0) > _KERNEL_WIDTH or any((one or 0) > _KERNEL_HEIGHT for one in height):
        size = "x".join(str(extent) for extent in weight.shape[2:])
        return f"Its kernel is {size}; the ANE takes a height of 32 and a width of 15 at most."
    return None


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
        id="R019",
        title="Convolution along three axes fails to lower to the ANE.",
        matches="`conv` whose input has rank 5",
        ops=_CONV,
        why=_three_axes,
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="M1 to M5",
        source=f"{_GUIDE}; {_SWEEP}",
        fix="sum two-dimensional convolutions over the third axis of the kernel",
    ),
    OpRule(
        id="R035",
        title="Wide convolution kernels exceed what the ANE takes.",
        matches="`conv` whose constant kernel is wider than 15 or higher than 32",
        ops=_CONV,
        why=_wide_kernel,
        outcome="warned",
        grade="B",
        consequence="runs on the CPU",
        scope="fp16: width 13 on M1, 15 to 16 from A14 on; height 29 to 32",
        source=f"{_GUIDE}; aneforge 0.4.0, _targets.py (16 and more fail on M5)",
        fix="split the kernel into narrower ones and add, or lay it out as a matmul over frames",
    ),
    OpRule(
        id="R038",
        title="A convolution whose weight is computed at run time crashes or is ignored.",
        matches="`conv` whose `weight` is not constant",
        ops=_CONV,
        why=_runtime_weight,
        outcome="warned",
        grade="B",
        consequence="the compiler crashes at a batch of 2 and more, or the weight is ignored",
        scope="M3 Max, M5",
        source=f"skyfallsin/apple-neural-engine-field-guide; {_GUIDE}",
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
)
