"""Forms of states: caches, positions and convolutions' tails, as states or handed through."""

from __future__ import annotations

from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb

from tests.own_packages.subjects import Variant, half, state, subject, whole

C, SLOTS = 16, 8
F16 = np.float16
CACHE = (
    "forgets earlier calls, value cache never written, key cache never written, "
    "caches exchanged, late by one call, written to the next slot, written to slot 0, "
    "added to what is there, mask ignored, mask off by one"
)
MASKS = {
    "write": 'kind = "one-hot"\naxis = 1\nposition-axis = 2',
    "mask": 'kind = "causal-mask"\naxis = 2\nposition-axis = 1',
}


def _rolled(x: Any, axis: int, step: int) -> Any:
    shape = list(x.shape)
    middle = step % shape[axis]
    parts = []
    for low, high in ((shape[axis] - middle, shape[axis]), (0, shape[axis] - middle)):
        begin, end = [0] * len(shape), list(shape)
        begin[axis], end[axis] = low, high
        parts.append(mb.slice_by_index(x=x, begin=begin, end=end))
    return mb.concat(values=parts, axis=axis)


def _written(v: Variant, cache: Any, new: Any, write: Any, *, never: bool) -> tuple[Any, Any]:
    """The cache before and after rows are put into their slots."""
    before = mb.read_state(input=cache)
    if v["forgets earlier calls"]:
        before = mb.mul(x=before, y=F16(0))
    put = mb.matmul(x=write, y=new)
    taken = mb.reduce_sum(x=write, axes=[-1], keep_dims=True)
    kept = before
    if not v["added to what is there"]:
        kept = mb.mul(x=before, y=mb.sub(x=F16(1), y=taken))
    after = mb.add(x=kept, y=put)
    mb.coreml_update_state(state=cache, value=before if never else after)
    return before, after


def _attention(v: Variant, x: Any, write: Any, mask: Any, keys: Any, values: Any) -> Any:
    if v["written to the next slot"]:
        write = _rolled(write, 1, 1)
    if v["written to slot 0"]:
        first = np.zeros((1, SLOTS, 1), F16)
        first[0, 0] = 1
        write = mb.mul(x=mb.reduce_max(x=write, axes=[1], keep_dims=True), y=first)
    q, k, w = (mb.matmul(x=x, y=v.weight(C, C)) for _ in range(3))
    never = (v["key cache never written"], v["value cache never written"])
    old_keys, new_keys = _written(v, keys, k, write, never=never[0])
    old_values, new_values = _written(v, values, w, write, never=never[1])
    if v["late by one call"]:
        new_keys, new_values = old_keys, old_values
    if v["caches exchanged"]:
        new_keys, new_values = new_values, new_keys
    if v["mask off by one"]:
        mask = _rolled(mask, 2, 1)
    scores = mb.mul(x=mb.matmul(x=q, y=new_keys, transpose_y=True), y=F16(C**-0.5))
    if not v["mask ignored"]:
        scores = mb.add(x=scores, y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=new_values)


CALL = {
    "x": half(1, 2, C), "write": half(1, SLOTS, 2), "mask": half(1, 2, SLOTS),
    "keys": state(1, SLOTS, C), "values": state(1, SLOTS, C),
}  # fmt: skip


@subject("caches written under a mask", CACHE, **CALL, inputs=MASKS)
def masked_cache(v: Variant, x: Any, write: Any, mask: Any, keys: Any, values: Any) -> Any:
    y = _attention(v, x, write, mask, keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject("caches beside a residual path", CACHE, **CALL, inputs=MASKS)
def residual_cache(v: Variant, x: Any, write: Any, mask: Any, keys: Any, values: Any) -> Any:
    y = _attention(v, x, write, mask, keys, values)
    return mb.add(x=x, y=mb.matmul(x=y, y=v.weight(C, C, scale=0.1)), name="y")


@subject("caches of which nothing is said", CACHE, **CALL)
def unsaid_cache(v: Variant, x: Any, write: Any, mask: Any, keys: Any, values: Any) -> Any:
    y = _attention(v, x, write, mask, keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "cache written at a position",
    "one slot late, always slot 0, never written, reset",
    x=half(1, 1, C),
    position=whole(1),
    rows=state(1, SLOTS, C),
)
def sliced_cache(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    before = mb.read_state(input=rows)
    if v["reset"]:
        before = mb.mul(x=before, y=F16(0))
    at = mb.add(x=position, y=np.int32(v["one slot late"]))
    at = mb.mul(x=at, y=np.int32(not v["always slot 0"]))
    begin = mb.concat(values=[np.int32([0]), at, np.int32([0])], axis=0)
    end = mb.concat(values=[np.int32([1]), mb.add(x=at, y=np.int32(1)), np.int32([C])], axis=0)
    after = mb.slice_update(x=before, update=x, begin=begin, end=end)
    mb.coreml_update_state(state=rows, value=before if v["never written"] else after)
    mixed = mb.matmul(x=v.weight(SLOTS, SLOTS)[None], y=after)
    return mb.matmul(x=mixed, y=v.weight(C, C), name="y")


WINDOW = 4
TAIL = ["reset at every call", "late by one", "reversed", "never written", "taps exchanged"]


def _convolved(v: Variant, x: Any, before: Any) -> tuple[Any, Any]:
    """The output and the tail `[1, C, 3]` after a position `x [1, C, 1]`."""
    if v["reset at every call"]:
        before = mb.mul(x=before, y=F16(0))
    every = mb.concat(values=[before, x], axis=2)
    after = mb.slice_by_index(x=every, begin=[0, 0, 1], end=[1, C, WINDOW])
    if v["late by one"]:
        after = mb.slice_by_index(x=every, begin=[0, 0, 0], end=[1, C, WINDOW - 1])
    if v["reversed"]:
        after = mb.reverse(x=after, axes=[2])
    taps = v.weight(C, WINDOW, scale=0.5)
    if v["taps exchanged"]:
        taps = taps[:, ::-1].copy()
    y = mb.reduce_sum(x=mb.mul(x=every, y=taps[None]), axes=[2])
    return mb.matmul(x=y, y=v.weight(C, C)), before if v["never written"] else after


@subject("a convolution's tail in a state", TAIL, x=half(1, C, 1), tail=state(1, C, WINDOW - 1))
def conv_state(v: Variant, x: Any, tail: Any) -> Any:
    y, after = _convolved(v, x, mb.read_state(input=tail))
    mb.coreml_update_state(state=tail, value=after)
    return mb.mul(x=y, y=F16(1), name="y")


@subject(
    "a convolution's tail that is handed through",
    TAIL,
    x=half(1, C, 1),
    tail=half(1, C, WINDOW - 1),
)
def conv_ports(v: Variant, x: Any, tail: Any) -> Any:
    y, after = _convolved(v, x, tail)
    return mb.mul(x=y, y=F16(1), name="y"), mb.mul(x=after, y=F16(1), name="new_tail")


@subject(
    "a recurrent state",
    ["reset at every call", "never written", "gate exchanged", "states exchanged",
     "one state never written"],
    x=half(1, C),
    memory=state(1, C),
    hidden=state(1, C),
)  # fmt: skip
def recurrent(v: Variant, x: Any, memory: Any, hidden: Any) -> Any:
    c, h = mb.read_state(input=memory), mb.read_state(input=hidden)
    if v["reset at every call"]:
        c, h = (mb.mul(x=each, y=F16(0)) for each in (c, h))
    if v["states exchanged"]:
        c, h = h, c
    z = mb.add(x=mb.matmul(x=x, y=v.weight(C, C)), y=mb.matmul(x=h, y=v.weight(C, C)))
    gate = mb.sigmoid(x=mb.matmul(x=x, y=v.weight(C, C)))
    other = mb.sub(x=F16(1), y=gate)
    if v["gate exchanged"]:
        gate, other = other, gate
    new = mb.add(x=mb.mul(x=gate, y=c), y=mb.mul(x=other, y=mb.tanh(x=z)))
    out = mb.tanh(x=mb.mul(x=new, y=F16(2)))
    lost = v["never written"]
    mb.coreml_update_state(state=hidden, value=h if lost or v["one state never written"] else out)
    mb.coreml_update_state(state=memory, value=c if lost else new)
    return mb.matmul(x=out, y=v.weight(C, C), name="y")


@subject(
    "a state that nothing reads",
    {"never written": "unproven"},
    x=half(1, C),
    memory=state(1, C),
    right="unproven",
)
def unread(v: Variant, x: Any, memory: Any) -> Any:
    before = mb.read_state(input=memory)
    mb.coreml_update_state(state=memory, value=before if v["never written"] else x)
    return mb.matmul(x=x, y=v.weight(C, C), name="y")
