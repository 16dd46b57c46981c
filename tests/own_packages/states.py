"""Forms of states: caches, positions and convolutions' tails, as states or handed through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb
from safetensors.numpy import save_file

from tests.own_packages.subjects import Subject, Variant, half, state, subject, whole

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


LENGTH = 32
"""Slots of a cache that calls of one position fill."""


def _mask(v: Variant, seen: Any) -> Any:
    return mb.select(cond=seen, a=F16(0), b=F16(-1e4))


def _attended(v: Variant, x: Any, begin: Any, seen: Any, keys: Any, values: Any) -> Any:
    """Attention over two caches, which takes `x [1, T, C]` in at a slot."""
    q, *new = (mb.matmul(x=x, y=v.weight(C, C)) for _ in range(3))
    slot = [np.int32([0]), begin, np.int32([0])]
    after = [np.int32([1]), mb.add(x=begin, y=np.int32(x.shape[1])), np.int32([C])]
    first, last = mb.concat(values=slot, axis=0), mb.concat(values=after, axis=0)
    rows = []
    for cache, each in zip((keys, values), new, strict=True):
        put = mb.slice_update(x=mb.read_state(input=cache), update=each, begin=first, end=last)
        mb.coreml_update_state(state=cache, value=put)
        rows.append(put)
    scores = mb.mul(x=mb.matmul(x=q, y=rows[0], transpose_y=True), y=F16(C**-0.5))
    return mb.matmul(x=mb.softmax(x=mb.add(x=scores, y=_mask(v, seen)), axis=-1), y=rows[1])


def _caches(slots: int) -> dict[str, Any]:
    return {"keys": state(1, slots, C), "values": state(1, slots, C)}


def _and(*conditions: Any) -> Any:
    result, *rest = conditions
    for each in rest:
        result = mb.logical_and(x=result, y=each)
    return result


@subject(
    "a cache over its whole length",
    "wiped at 16, slot 20 is lost, a window of 12, first slots lost from 24 on, last slot lost",
    x=half(1, 1, C),
    position=whole(1),
    **_caches(LENGTH),
)
def long_cache(v: Variant, x: Any, position: Any, keys: Any, values: Any) -> Any:
    slots = np.arange(LENGTH, dtype=np.int32)
    conditions = [mb.less_equal(x=slots, y=position)]
    if v["wiped at 16"]:
        early = mb.less(x=position, y=np.int32(16))
        conditions.append(mb.logical_or(x=early, y=slots >= 16))
    if v["slot 20 is lost"]:
        conditions.append(slots != 20)
    if v["last slot lost"]:
        conditions.append(slots != LENGTH - 1)
    if v["a window of 12"]:
        conditions.append(mb.greater(x=slots, y=mb.sub(x=position, y=np.int32(12))))
    if v["first slots lost from 24 on"]:
        conditions.append(mb.logical_or(x=mb.less(x=position, y=np.int32(24)), y=slots >= 4))
    y = _attended(v, x, position, _and(*conditions), keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "a ring of slots",
    "no wrap, wraps a slot early, forgets when it wraps",
    x=half(1, 1, C),
    position=whole(1),
    **_caches(SLOTS),
)
def ring_cache(v: Variant, x: Any, position: Any, keys: Any, values: Any) -> Any:
    slots = np.arange(SLOTS, dtype=np.int32)
    if v["no wrap"]:
        slot = mb.minimum(x=position, y=np.int32(SLOTS - 1))
    else:
        slot = mb.mod(x=position, y=np.int32(SLOTS - v["wraps a slot early"]))
    seen = mb.less_equal(x=slots, y=position)
    if v["forgets when it wraps"]:
        seen = mb.less_equal(x=slots, y=slot)
    y = _attended(v, x, slot, seen, keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


CHUNK = 4


@subject(
    "a cache that calls of four positions fill",
    "third row never seen again, rows in reverse order, a call sees the one before alone",
    x=half(1, CHUNK, C),
    position=whole(1),
    **_caches(LENGTH),
)
def chunk_cache(v: Variant, x: Any, position: Any, keys: Any, values: Any) -> Any:
    slots = np.arange(LENGTH, dtype=np.int32)
    rows = mb.add(x=np.arange(CHUNK, dtype=np.int32)[:, None], y=position)
    conditions = [mb.less_equal(x=slots, y=rows)]
    if v["third row never seen again"]:
        own = mb.greater_equal(x=slots, y=position)
        conditions.append(mb.logical_or(x=own, y=slots % CHUNK != 2))
    if v["a call sees the one before alone"]:
        before = mb.sub(x=position, y=np.int32(CHUNK))
        conditions.append(mb.greater_equal(x=slots, y=before))
    if v["rows in reverse order"]:
        x = mb.reverse(x=x, axes=[1])
    y = _attended(v, x, position, _and(*conditions), keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "a cache whose own count says where it is written",
    "stepped by 1, stepped by 1 from the fourth call on",
    x=half(1, CHUNK, C),
    count=state(1),
    **_caches(LENGTH),
)
def stepped_cache(v: Variant, x: Any, count: Any, keys: Any, values: Any) -> Any:
    number = mb.read_state(input=count)
    step = F16(1 if v["stepped by 1"] else CHUNK)
    if v["stepped by 1 from the fourth call on"]:
        late = mb.cast(x=mb.greater_equal(x=number, y=F16(3 * CHUNK)), dtype="fp16")
        step = mb.sub(x=F16(CHUNK), y=mb.mul(x=late, y=F16(CHUNK - 1)))
    after = mb.mod(x=mb.add(x=number, y=step), y=F16(LENGTH))
    mb.coreml_update_state(state=count, value=after)
    begin, slots = mb.cast(x=number, dtype="int32"), np.arange(LENGTH, dtype=np.int32)
    begin = mb.minimum(x=begin, y=np.int32(LENGTH - CHUNK))
    rows = mb.add(x=np.arange(CHUNK, dtype=np.int32)[:, None], y=begin)
    y = _attended(v, x, begin, mb.less_equal(x=slots, y=rows), keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "a cache whose rows' angles come of their positions",
    "rows stepped by 1 from one call to the next, all rows at the position of the first",
    x=half(1, CHUNK, C),
    position=whole(1),
    **_caches(LENGTH),
)
def turned_rows(v: Variant, x: Any, position: Any, keys: Any, values: Any) -> Any:
    slots, offsets = (np.arange(n, dtype=np.int32) for n in (LENGTH, CHUNK))
    begin = position
    if v["rows stepped by 1 from one call to the next"]:
        begin = mb.floor_div(x=position, y=np.int32(CHUNK))
    if v["all rows at the position of the first"]:
        offsets = offsets * 0
    rows = mb.cast(x=mb.add(x=offsets[:, None], y=begin), dtype="fp16")
    angles = mb.mul(x=rows, y=(10.0 ** (-np.arange(C // 2) / 4))[None].astype(F16))
    first, second = mb.split(x=x, num_splits=2, axis=2)
    cos, sin = mb.cos(x=angles), mb.sin(x=angles)
    turned = (
        mb.sub(x=mb.mul(x=first, y=cos), y=mb.mul(x=second, y=sin)),
        mb.add(x=mb.mul(x=first, y=sin), y=mb.mul(x=second, y=cos)),
    )
    x = mb.concat(values=turned, axis=2)
    seen = mb.add(x=np.arange(CHUNK, dtype=np.int32)[:, None], y=position)
    y = _attended(v, x, position, mb.less_equal(x=slots, y=seen), keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "a sum that begins anew at position 0",
    "a second sequence sees the first, decays once a call",
    x=half(1, CHUNK, C),
    position=whole(1),
    total=state(1, C),
    inputs={"position": 'kind = "positions"'},
)
def restarted(v: Variant, x: Any, position: Any, total: Any) -> Any:
    before = mb.read_state(input=total)
    if not v["a second sequence sees the first"]:
        fresh = mb.cast(x=mb.equal(x=position, y=np.int32(0)), dtype="fp16")
        before = mb.mul(x=before, y=mb.sub(x=F16(1), y=fresh))
    decay = 0.9 ** np.arange(CHUNK, -1, -1)
    new = mb.mul(x=x, y=decay[1:, None].astype(F16))
    kept = mb.mul(x=before, y=F16(decay[-2] if v["decays once a call"] else decay[0]))
    after = mb.add(x=kept, y=mb.reduce_sum(x=new, axes=[1]))
    mb.coreml_update_state(state=total, value=after)
    return mb.matmul(x=mb.tanh(x=after), y=v.weight(C, C), name="y")


@subject(
    "a state that every call decays",
    "wiped at the sixteenth call, decays no more from there on",
    x=half(1, C),
    total=state(1, C),
    count=state(1),
)
def counted(v: Variant, x: Any, total: Any, count: Any) -> Any:
    number = mb.read_state(input=count)
    mb.coreml_update_state(state=count, value=mb.minimum(x=mb.add(x=number, y=F16(1)), y=F16(99)))
    early = mb.cast(x=mb.less(x=number, y=F16(16)), dtype="fp16")
    kept = mb.mul(x=mb.read_state(input=total), y=F16(0.8))
    if v["wiped at the sixteenth call"]:
        kept = mb.mul(x=kept, y=early)
    if v["decays no more from there on"]:
        late = mb.mul(x=mb.sub(x=F16(1), y=early), y=F16(0.25))
        kept = mb.mul(x=kept, y=mb.add(x=F16(1), y=late))
    after = mb.add(x=kept, y=x)
    mb.coreml_update_state(state=total, value=after)
    y = mb.add(x=mb.tanh(x=after), y=mb.mul(x=number, y=F16(1e-3)))
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "angles of a position in a table",
    "rows of the table exchanged from 24 on, angles of the call before",
    x=half(1, 1, C),
    position=whole(1),
    **_caches(LENGTH),
)
def turned_cache(v: Variant, x: Any, position: Any, keys: Any, values: Any) -> Any:
    angles = np.arange(LENGTH)[:, None] * 10.0 ** (-np.arange(C) / C)
    cos, sin = np.cos(angles).astype(F16), np.sin(angles).astype(F16)
    if v["rows of the table exchanged from 24 on"]:
        cos[24:], sin[24:] = cos[24:][::-1].copy(), sin[24:][::-1].copy()
    at = position
    if v["angles of the call before"]:
        at = mb.maximum(x=mb.sub(x=position, y=np.int32(1)), y=np.int32(0))
    halves = mb.split(x=x, num_splits=2, axis=2)
    other = mb.concat(values=[mb.mul(x=halves[1], y=F16(-1)), halves[0]], axis=2)
    cos, sin = (mb.gather(x=table, indices=at, axis=0) for table in (cos, sin))
    x = mb.add(x=mb.mul(x=x, y=cos), y=mb.mul(x=other, y=sin))
    seen = mb.less_equal(x=np.arange(LENGTH, dtype=np.int32), y=position)
    y = _attended(v, x, position, seen, keys, values)
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


def _golden_rows(calls: int) -> Any:
    """Golden tensors of calls at one position after another, computed by numpy in float64."""

    def prepare(each: Subject, folder: Path) -> None:
        weight, rows, tensors = Variant(each).weight(C, C), np.zeros((SLOTS, C)), {}
        for at in range(calls):
            x = rows[at] = np.random.default_rng(at).standard_normal(C).astype(np.float32)
            tensors[f"0.{at}.in.x"] = x[None, None].astype(np.float32)
            tensors[f"0.{at}.in.position"] = np.int32([at])
            tensors[f"0.{at}.out.y"] = (np.tanh(rows.sum(0)) @ weight)[None].astype(np.float32)
        (folder / each.name).mkdir()
        save_file(tensors, folder / each.name / "golden.safetensors")

    return {"prepare": prepare, "reference": "golden.safetensors"}


ROWS = {"x": half(1, 1, C), "position": whole(1), "rows": state(1, SLOTS, C)}


def _summed(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    begin = mb.concat(values=[np.int32([0]), position, np.int32([0])], axis=0)
    after = mb.add(x=position, y=np.int32(1))
    end = mb.concat(values=[np.int32([1]), after, np.int32([C])], axis=0)
    put = mb.slice_update(x=mb.read_state(input=rows), update=x, begin=begin, end=end)
    mb.coreml_update_state(state=rows, value=put)
    kept = F16(np.arange(SLOTS) != 6 if v["slot 6 is lost"] else np.ones(SLOTS))
    total = mb.reduce_sum(x=mb.mul(x=put, y=kept[None, :, None]), axes=[1])
    return mb.matmul(x=mb.tanh(x=total), y=v.weight(C, C), name="y")


@subject("golden tensors of every slot", ["slot 6 is lost"], **ROWS, **_golden_rows(SLOTS))
def golden_slots(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    return _summed(v, x, position, rows)


@subject(
    "golden tensors of half of the slots",
    {"slot 6 is lost": "unproven"},
    right="unproven",
    **ROWS,
    **_golden_rows(SLOTS // 2),
)
def golden_some_slots(v: Variant, x: Any, position: Any, rows: Any) -> Any:
    return _summed(v, x, position, rows)
