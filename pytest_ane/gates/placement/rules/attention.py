"""Attention: masks that are ignored, and masks that turn into NaN."""

from __future__ import annotations

from pytest_ane.gates.placement.graph import Site
from pytest_ane.gates.placement.rules.base import AUTHORING, OpRule
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.records import Ref

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


RULES = (
    OpRule(
        id="R049",
        title="The ANE's fused attention ignores a mask that comes from outside.",
        matches="`scaled_dot_product_attention` whose `attn_mask` is a function's input (also "
        "through `cast`) or computed by an ineligible op",
        ops=frozenset({"scaled_dot_product_attention"}),
        why=_ignored_mask,
        consequence="silently wrong values (cosine 0.87 to 0.975), equal to attention without a "
        "mask",
        scope="M1 Max on macOS 27, 22 of 22 ops; coremltools 9",
        source="sidekick DECISIONS.md D25 (bisected); maderix/ANE notes agree",
        fix="write attention as matmul, add, softmax, matmul",
    ),
    OpRule(
        id="R052",
        title="Masks of -inf or of fp16's lowest number give NaN and push attention off the ANE.",
        matches="`select`, `add`, `fill` or `attn_mask` with a constant that holds -65504 or less",
        ops=frozenset(_FILLS),
        why=_infinite_fill,
        outcome="warned",
        consequence="NaN, or attention on the CPU",
        scope="all",
        source="FluidInference/FluidAudio, Documentation/ANE_Candidates.md; "
        f"john-rocky/CoreML-LLM@72178c6, docs/; sidekick CONVERTING.md; {AUTHORING}",
        fix="use a finite mask of -1e4 to -6e4 (Apple: -4e4)",
    ),
)
