"""Forms of functions: several in one package, each compared with that of its name."""

from __future__ import annotations

from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb

from tests.own_packages.subjects import Variant, half, state, subject, whole

C = 16
F16 = np.float16


@subject(
    "functions of several lengths",
    {"second function of other weights": "failed", "second function reads one position": "failed",
     "both functions wrong": "failed", "second function missing": "unproven"},
    functions={"decode": {"x": half(1, 1, C)}, "verify4": {"x": half(1, 4, C)}},
)  # fmt: skip
def lengths(v: Variant, x: Any) -> Any:
    weight, second = v.weight(C, C), v.function == "verify4"
    if v["both functions wrong"] or (v["second function of other weights"] and second):
        weight = weight.T.copy()
    y = mb.tanh(x=mb.matmul(x=x, y=weight))
    if v["second function reads one position"] and second:
        y = mb.mul(x=mb.reduce_mean(x=y, axes=[1], keep_dims=True), y=np.ones((1, 4, 1), F16))
    return mb.mul(x=y, y=F16(1), name="y")


@subject(
    "functions of one shape, as adapters are",
    "functions exchanged, one adapter for both, adapter scaled twice, last function by default",
    functions={"base": {"x": half(1, C)}, "french": {"x": half(1, C)}},
)
def adapters(v: Variant, x: Any) -> Any:
    weight, down, up = v.weight(C, C), v.weight(C, 4), v.weight(4, C)
    adapted = v.function == "french"
    if v["functions exchanged"]:
        adapted = not adapted
    if v["one adapter for both"]:
        adapted = True
    y = mb.matmul(x=x, y=weight)
    if adapted:
        scale = F16(4 if v["adapter scaled twice"] else 2)
        y = mb.add(x=y, y=mb.mul(x=mb.matmul(x=mb.matmul(x=x, y=down), y=up), y=scale))
    return mb.tanh(x=y, name="y")


@subject(
    "functions on a state",
    "second function forgets, second function never writes",
    functions={
        name: {"x": half(1, length, C), "total": state(1, 1, C)}
        for name, length in (("decode", 1), ("verify4", 4))
    },
)
def on_a_state(v: Variant, x: Any, total: Any) -> Any:
    second = v.function == "verify4"
    before = mb.read_state(input=total)
    if v["second function forgets"] and second:
        before = mb.mul(x=before, y=F16(0))
    after = mb.add(x=mb.mul(x=before, y=F16(0.75)), y=mb.reduce_sum(x=x, axes=[1], keep_dims=True))
    lost = v["second function never writes"] and second
    mb.coreml_update_state(state=total, value=before if lost else after)
    y = mb.tanh(x=mb.add(x=x, y=after))
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "a prefill and decoding on one cache",
    "prefill keeps eight times as much, prefill keeps it negated, decoding keeps it in reverse",
    functions={
        name: {"x": half(1, length, C), "position": whole(1), "rows": state(1, 16, C)}
        for name, length in (("decode", 1), ("prefill", 4))
    },
)
def prefilled(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    """Each function reads what it wrote itself; the other does not."""
    prefill, length, before = v.function == "prefill", x.shape[1], mb.read_state(input=rows)
    gain = 8.0 if v["prefill keeps eight times as much"] and prefill else 1.0
    gain = -gain if v["prefill keeps it negated"] and prefill else gain
    turned = v["decoding keeps it in reverse"] and not prefill
    held = mb.mul(x=before, y=F16(1 / gain))
    if turned:
        held = mb.reverse(x=held, axes=[2])
    begin = mb.concat(values=[np.int32([0]), position, np.int32([0])], axis=0)
    after = mb.add(x=position, y=np.int32(length))
    end = mb.concat(values=[np.int32([1]), after, np.int32([C])], axis=0)
    held = mb.slice_update(x=held, update=x, begin=begin, end=end)
    kept = mb.reverse(x=held, axes=[2]) if turned else held
    mb.coreml_update_state(state=rows, value=mb.mul(x=kept, y=F16(gain)))
    alike = mb.matmul(x=mb.mul(x=x, y=F16(1 / C)), y=held, transpose_y=True)
    y = mb.matmul(x=mb.matmul(x=mb.softmax(x=alike, axis=-1), y=held), y=v.weight(C, C))
    return mb.tanh(x=y, name="y")


def _on_rows(decode: str, prefill: str, *more: str) -> dict[str, Any]:
    """Functions with the names of their caches; more states of decoding are of one number."""
    names = {"decode": (decode, 1), "prefill": (prefill, 4)}
    rest = {"decode": {each: state(1) for each in more}, "prefill": {}}
    return {
        name: {"x": half(1, length, C), "position": whole(1), cache: state(1, 16, C), **rest[name]}
        for name, (cache, length) in names.items()
    }


KEPT = (
    "prefill keeps eight times as much",
    "prefill keeps it negated",
    "decoding keeps it in reverse",
)


@subject(
    "a prefill and decoding on caches of two names",
    dict.fromkeys(KEPT, "unproven"),
    right="unproven",
    functions=_on_rows("rows", "cache"),
)
def renamed(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    return prefilled(v, x, position, rows)


@subject(
    "decoding with a state that its prefill has not",
    KEPT,
    functions=_on_rows("rows", "rows", "count"),
)
def counted_rows(v: Variant, x: Any, position: Any, rows: Any, *count: Any) -> Any:
    gain = F16(1)
    for each in count:
        number = mb.minimum(x=mb.add(x=mb.read_state(input=each), y=F16(1)), y=F16(99))
        mb.coreml_update_state(state=each, value=number)
        gain = mb.add(x=mb.mul(x=number, y=F16(0.01)), y=gain)
    return mb.mul(x=prefilled(v, x, position, rows), y=gain, name="z")
