"""Rules on convolutions, matrix products and attention."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ane.gates.placement._graph import Site
from pytest_ane.gates.placement.rules._base import Why
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


WHY: dict[str, Why] = {
    "R035": lambda site: _kernel(site.tensor("weight")),
    "R038": _runtime_weight,
    "R073": _palettized_depthwise,
    "R106": lambda site: _window(site.integers("kernel_sizes")),
    "R108": _strides,
    "R109": lambda site: (
        f"Its strides are {'x'.join(map(str, strides))}; 2 and 4 cost least."
        if not set(strides := site.integers("strides")) <= {1, 2, 4}
        else None
    ),
    "R028": _rank_5,
    "R029": _rank_5,
    "R031 ineligible": lambda site: _deep(site, limit("matmul depth"), constant=False),
    "R031 warned": lambda site: _deep(site, _CONSTANT_DEPTH, constant=True),
    "R049": _ignored_mask,
    "R052": _infinite_fill,
}
