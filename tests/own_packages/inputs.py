"""Kinds of inputs: what the manifest says that they are, or the program implies."""

from __future__ import annotations

from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb

from tests.own_packages.subjects import Variant, ct, exchanged, half, single, subject, whole

T, C, SLOTS, VOCABULARY = 8, 16, 12, 64
F16 = np.float16


@subject(
    "normal",
    ["weights transposed", "bias dropped", "activation forgotten", "gain forgotten", "negated",
     "channels rotated", "half of the channels zero"],
    x=half(1, T, C),
)  # fmt: skip
def projection(v: Variant, x: Any) -> Any:
    weight, bias = v.weight(C, C), v.weight(C, scale=1)
    if v["weights transposed"]:
        weight = weight.T.copy()
    if v["channels rotated"]:
        weight = np.roll(weight, 1, axis=1)
    if v["half of the channels zero"]:
        weight[:, C // 2 :], bias[C // 2 :] = 0, 0
    y = mb.matmul(x=x, y=weight)
    y = y if v["bias dropped"] else mb.add(x=y, y=bias)
    y = y if v["activation forgotten"] else mb.gelu(x=y, mode="TANH_APPROXIMATION")
    gain = 1 if v["gain forgotten"] else -4 if v["negated"] else 4
    return mb.mul(x=y, y=F16(gain), name="y")


@subject(
    "uniform with a mean",
    "mean not subtracted, variance in place of deviation",
    x=half(1, T, C),
    inputs={"x": 'kind = "uniform"\nrange = [-1.0, 7.0]'},
)
def layer_norm(v: Variant, x: Any) -> Any:
    mean = mb.reduce_mean(x=x, axes=[-1], keep_dims=True)
    centred = x if v["mean not subtracted"] else mb.sub(x=x, y=mean)
    variance = mb.reduce_mean(x=mb.square(x=centred), axes=[-1], keep_dims=True)
    variance = mb.add(x=variance, y=F16(1e-3))
    if not v["variance in place of deviation"]:
        variance = mb.sqrt(x=variance)
    return mb.mul(x=mb.real_div(x=centred, y=variance), y=v.weight(C, scale=1), name="y")


@subject(
    "uniform",
    "clipped at 1, gate of the wrong sign",
    x=half(1, T, C),
    inputs={"x": 'kind = "uniform"\nrange = [-6.0, 6.0]'},
)
def saturation(v: Variant, x: Any) -> Any:
    if v["clipped at 1"]:
        x = mb.clip(x=x, alpha=F16(-1), beta=F16(1))
    slope = F16(-0.2 if v["gate of the wrong sign"] else 0.2)
    gate = mb.sigmoid_hard(x=x, alpha=slope, beta=F16(0.5))
    return exchanged(mb.mul, v, x, gate)


@subject(
    "positive, implied by a logarithm",
    "eps 0.5, power for magnitude, decibels for nepers, filters transposed",
    magnitude=half(1, T, C),
)
def log_mel(v: Variant, magnitude: Any) -> Any:
    filters = v.weight(C, C)
    if v["filters transposed"]:
        filters = filters.T.copy()
    x = magnitude
    if v["power for magnitude"]:
        x = mb.mul(x=x, y=x)
    x = mb.add(x=x, y=F16(0.5 if v["eps 0.5"] else 1e-4))
    y = mb.matmul(x=mb.log(x=x), y=filters)
    return mb.mul(x=y, y=F16(8.686 if v["decibels for nepers"] else 1), name="y")


@subject(
    "positive",
    "eps 0.1, root forgotten",
    magnitude=half(1, T, C),
    inputs={"magnitude": 'kind = "positive"\ndeviation = 0.01'},
)
def compressed_spectrum(v: Variant, magnitude: Any) -> Any:
    x = mb.add(x=magnitude, y=F16(0.1 if v["eps 0.1"] else 1e-4))
    y = x if v["root forgotten"] else mb.pow(x=x, y=F16(0.3))
    return mb.matmul(x=y, y=v.weight(C, C), name="y")


@subject(
    "floats of unknown range, of which the policy says how large they get",
    "squares in fp16, clipped at 100, negative ones lost from 300 on",
    x=half(1, T, C),
    shard="policy.fidelity.input-range = 2000",
)
def scaled_norm(v: Variant, x: Any) -> Any:
    """An RMSNorm that divides by the largest value before it squares."""
    if v["clipped at 100"]:
        x = mb.clip(x=x, alpha=F16(-100), beta=F16(100))
    if v["negative ones lost from 300 on"]:
        x = mb.maximum(x=x, y=F16(-300))
    if not v["squares in fp16"]:
        largest = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
        x = mb.real_div(x=x, y=mb.add(x=largest, y=F16(1e-3)))
    squares = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[-1], keep_dims=True)
    normed = mb.mul(x=x, y=mb.rsqrt(x=squares, epsilon=F16(1e-5)))
    return mb.matmul(x=normed, y=v.weight(C, C), name="y")


@subject(
    "floats of unknown range, which overflow in the reference as well",
    "eps 0.1",
    x=half(1, T, C),
)
def squared_norm(v: Variant, x: Any) -> Any:
    squares = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[-1], keep_dims=True)
    squares = mb.add(x=squares, y=F16(0.1 if v["eps 0.1"] else 1e-5))
    normed = mb.mul(x=x, y=mb.rsqrt(x=squares))
    return mb.matmul(x=normed, y=v.weight(C, C), name="y")


@subject(
    "a residual path with a massive channel",
    "squares in fp16, norm forgotten beyond 1000",
    x=half(1, T, C),
    shard='probes = {{ kinds = ["gaussian", "massive"] }}',
)
def massive_block(v: Variant, x: Any) -> Any:
    normed = x
    if not v["squares in fp16"]:
        largest = mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True)
        normed = mb.real_div(x=x, y=mb.add(x=largest, y=F16(1e-3)))
    squares = mb.reduce_mean(x=mb.mul(x=normed, y=normed), axes=[-1], keep_dims=True)
    normed = mb.mul(x=normed, y=mb.rsqrt(x=squares, epsilon=F16(1e-5)))
    if v["norm forgotten beyond 1000"]:
        large = mb.greater(x=mb.reduce_max(x=x, axes=[-1], keep_dims=True), y=F16(1000))
        normed = mb.select(cond=large, a=mb.mul(x=x, y=F16(0.01)), b=normed)
    return mb.add(x=x, y=mb.matmul(x=normed, y=v.weight(C, C)), name="y")


@subject(
    "floats that an exponential takes",
    "maximum not taken off",
    x=half(1, T, C),
    shard="policy.fidelity.input-range = 100",
)
def own_softmax(v: Variant, x: Any) -> Any:
    if not v["maximum not taken off"]:
        x = mb.sub(x=x, y=mb.reduce_max(x=x, axes=[-1], keep_dims=True))
    e = mb.exp(x=x)
    shares = mb.real_div(x=e, y=mb.reduce_sum(x=e, axes=[-1], keep_dims=True))
    return mb.matmul(x=shares, y=v.weight(C, C), name="y")


def _table(v: Variant, rows: int = VOCABULARY) -> Any:
    table = v.weight(rows, C, scale=1)
    if v["rows from 2 on are zero"]:
        table[2:] = 0
    if v["last rows exchanged"]:
        table[-2:] = table[:-3:-1].copy()
    if v["rows shifted by one"]:
        table = np.roll(table, 1, axis=0)
    if v["last row zero"]:
        table[-1] = 0
    return table


TABLE = ["rows from 2 on are zero", "last rows exchanged", "rows shifted by one", "last row zero"]


@subject("ids, implied by a gather", [*TABLE, "scale forgotten"], tokens=whole(1, T))
def embedding(v: Variant, tokens: Any) -> Any:
    rows = mb.gather(x=_table(v), indices=tokens, axis=0)
    return mb.mul(x=rows, y=F16(1 if v["scale forgotten"] else C**0.5), name="y")


@subject("ids of a long call", TABLE, tokens=whole(1, 64))
def long_embedding(v: Variant, tokens: Any) -> Any:
    return mb.gather(x=_table(v, 192), indices=tokens, axis=0, name="y")


@subject("ids", TABLE, tokens=whole(1, T), inputs={"tokens": f'kind = "ids"\ncount = {VOCABULARY}'})
def compared_ids(v: Variant, tokens: Any) -> Any:
    every = np.arange(VOCABULARY, dtype=np.int32)
    hit = mb.equal(x=mb.expand_dims(x=tokens, axes=[-1]), y=every)
    return mb.matmul(x=mb.cast(x=hit, dtype="fp16"), y=_table(v), name="y")


@subject(
    "integers of which nothing is known",
    {"wrong from 2 on": "unproven"},
    count=whole(1, T),
    right="unproven",
)
def unknown_integers(v: Variant, count: Any) -> Any:
    if v["wrong from 2 on"]:
        count = mb.minimum(x=count, y=np.int32(1))
    x = mb.expand_dims(x=mb.cast(x=count, dtype="fp16"), axes=[-1])
    return mb.cos(x=mb.mul(x=x, y=v.weight(C, scale=1)), name="y")


@subject(
    "causal-mask",
    "ignored, keys and queries exchanged, off by one, multiplied, never seen again",
    x=half(1, T, C),
    mask=half(1, T, T),
    inputs={"mask": 'kind = "causal-mask"'},
)
def attention(v: Variant, x: Any, mask: Any) -> Any:
    q, k, w = (mb.matmul(x=x, y=v.weight(C, C)) for _ in range(3))
    scores = mb.mul(x=mb.matmul(x=q, y=k, transpose_y=True), y=F16(C**-0.5))
    if v["keys and queries exchanged"]:
        mask = mb.transpose(x=mask, perm=[0, 2, 1])
    if v["off by one"]:
        mask = mb.slice_by_index(x=mask, begin=[0, 0, 1], end=[1, T, T])
        mask = mb.pad(x=mask, pad=[0, 1], mode="constant", constant_val=F16(-1e4))
    if v["never seen again"]:
        mask = mb.add(x=mask, y=np.where(np.eye(T) == 1, 0, -1e4).astype(F16))
    if v["multiplied"]:
        scores = mb.mul(x=scores, y=mask)
    elif not v["ignored"]:
        scores = mb.add(x=scores, y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=w, name="y")


@subject(
    "causal-mask of a window",
    "window one longer, window one shorter",
    x=half(1, T, C),
    mask=half(1, 1, T, T),
    inputs={"mask": 'kind = "causal-mask"\nwindow = 4'},
)
def windowed(v: Variant, x: Any, mask: Any) -> Any:
    """The window that the mask says, narrowed or widened by the package."""
    distance = np.subtract.outer(np.arange(T), np.arange(T))
    mask = mb.squeeze(x=mask, axes=[1])
    if v["window one longer"]:
        mask = mb.add(x=mask, y=np.where(distance == 4, 1e4, 0).astype(F16))
    if v["window one shorter"]:
        mask = mb.add(x=mask, y=np.where(distance == 3, -1e4, 0).astype(F16))
    q, k, w = (mb.matmul(x=x, y=v.weight(C, C)) for _ in range(3))
    scores = mb.add(x=mb.mul(x=mb.matmul(x=q, y=k, transpose_y=True), y=F16(0.25)), y=mask)
    return mb.matmul(x=mb.softmax(x=scores, axis=-1), y=w, name="y")


@subject(
    "one-hot",
    "slot off by one, ignored, slots reversed",
    x=half(1, T, C),
    slot=half(1, T, SLOTS),
    inputs={"slot": 'kind = "one-hot"'},
)
def scattered(v: Variant, x: Any, slot: Any) -> Any:
    """Rows put into the slots of a cache, with a table of the slots added."""
    if v["slot off by one"]:
        slot = mb.slice_by_index(x=slot, begin=[0, 0, 0], end=[1, T, SLOTS - 1])
        slot = mb.pad(x=slot, pad=[1, 0], mode="constant", constant_val=F16(0))
    if v["ignored"]:
        slot = mb.add(x=mb.mul(x=slot, y=F16(0)), y=F16(1 / SLOTS))
    if v["slots reversed"]:
        slot = mb.reverse(x=slot, axes=[2])
    put = mb.matmul(x=slot, y=x, transpose_x=True)
    return mb.add(x=put, y=v.weight(SLOTS, C, scale=0.1), name="y")


@subject(
    "positions",
    ["off by one", "ignored", "theta 100 for 10,000"],
    x=half(1, T, C),
    position=whole(1, T),
    inputs={"position": 'kind = "positions"'},
)
def sinusoids(v: Variant, x: Any, position: Any) -> Any:
    theta = 100.0 if v["theta 100 for 10,000"] else 10_000.0
    frequencies = (theta ** (-np.arange(C) / C)).astype(F16)
    p = mb.expand_dims(x=mb.cast(x=position, dtype="fp16"), axes=[-1])
    p = mb.add(x=p, y=F16(1)) if v["off by one"] else p
    p = mb.mul(x=p, y=F16(0)) if v["ignored"] else p
    return exchanged(mb.mul, v, x, mb.sin(x=mb.mul(x=p, y=frequencies)))


HEAD = 16
ROPE = "axis = 1\nposition-axis = 3"


@subject(
    "rope-cos and rope-sin",
    "cosine and sine exchanged, sign, neighbours for halves, one half not rotated",
    x=half(1, HEAD, 1, T),
    cos=half(1, HEAD, 1, T),
    sin=half(1, HEAD, 1, T),
    inputs={"cos": f'kind = "rope-cos"\n{ROPE}', "sin": f'kind = "rope-sin"\n{ROPE}'},
)
def rope(v: Variant, x: Any, cos: Any, sin: Any) -> Any:
    if v["cosine and sine exchanged"]:
        cos, sin = sin, cos
    first, second = mb.split(x=x, num_splits=2, axis=1)
    if v["neighbours for halves"]:
        pairs = mb.reshape(x=x, shape=[HEAD // 2, 2, 1, T])
        odd, even = (
            mb.slice_by_index(x=pairs, begin=[0, i, 0, 0], end=[HEAD // 2, i + 1, 1, T])
            for i in (1, 0)
        )
        turned = mb.concat(values=[mb.mul(x=odd, y=F16(-1)), even], axis=1)
        turned = mb.reshape(x=turned, shape=[1, HEAD, 1, T])
    elif v["one half not rotated"]:
        turned = mb.concat(values=[mb.mul(x=second, y=F16(-1)), mb.mul(x=first, y=F16(0))], axis=1)
    else:
        sign = F16(1 if v["sign"] else -1)
        turned = mb.concat(values=[mb.mul(x=second, y=sign), first], axis=1)
    return exchanged(mb.add, v, mb.mul(x=x, y=cos), mb.mul(x=turned, y=sin))


EXPERTS = 4


@subject(
    "routing",
    "ignored, best expert only, experts exchanged, normalised again, one expert lost",
    x=half(1, T, C),
    routing=half(1, T, EXPERTS),
    inputs={"routing": 'kind = "routing"\nactive = 2'},
)
def mixture(v: Variant, x: Any, routing: Any) -> Any:
    if v["ignored"]:
        routing = mb.add(x=mb.mul(x=routing, y=F16(0)), y=F16(1 / EXPERTS))
    if v["best expert only"]:
        best = mb.reduce_max(x=routing, axes=[-1], keep_dims=True)
        hit = mb.cast(x=mb.greater_equal(x=routing, y=best), dtype="fp16")
        routing = mb.mul(x=routing, y=hit)
    if v["normalised again"]:
        routing = mb.softmax(x=routing, axis=-1)
    experts = [mb.matmul(x=x, y=v.weight(C, C)) for _ in range(EXPERTS)]
    if v["experts exchanged"]:
        experts[:2] = experts[1::-1]
    weights = mb.split(x=routing, num_splits=EXPERTS, axis=-1)
    parts = [mb.mul(x=e, y=w) for e, w in zip(experts, weights, strict=True)]
    total = parts[0]
    for part in parts[1 : EXPERTS - v["one expert lost"]]:
        total = mb.add(x=total, y=part)
    return mb.mul(x=total, y=F16(1), name="y")


SIDE = 8
IMAGE = ["red and blue exchanged", "scale doubled", "bias dropped", "rows and columns exchanged"]


def _convolved(v: Variant, x: Any, channels: int) -> Any:
    if v["rows and columns exchanged"]:
        x = mb.transpose(x=x, perm=[0, 1, 3, 2])
    weight = v.weight(4, channels, 3, 3, scale=0.3).astype(np.float32)
    return mb.conv(x=x, weight=weight, pad_type="same", name="y")


def _pixels(colors: str) -> Any:
    def convert(v: Variant) -> dict[str, Any]:
        layout = "BGR" if "red and blue" in v.fault else colors
        channels = 3 if layout in ("RGB", "BGR") else 1
        bias = [-0.4, -0.5, -0.6][:channels]
        image = ct.ImageType(
            "x",
            (1, channels, SIDE, SIDE),
            scale=(2 if v["scale doubled"] else 1) / 255,
            bias=(bias if channels > 1 else bias[0]) if not v["bias dropped"] else None,
            color_layout=getattr(ct.colorlayout, layout),
        )
        return {"inputs": [image]}

    return convert


@subject("image, RGB", IMAGE, x=single(1, 3, SIDE, SIDE), convert=_pixels("RGB"))
def rgb_image(v: Variant, x: Any) -> Any:
    return _convolved(v, x, 3)


@subject("image, GRAYSCALE", IMAGE[1:], x=single(1, 1, SIDE, SIDE), convert=_pixels("GRAYSCALE"))
def gray_image(v: Variant, x: Any) -> Any:
    return _convolved(v, x, 1)


@subject(
    "image in a tensor",
    "red and blue exchanged, rows and columns exchanged, not divided by 255",
    x=half(1, 3, SIDE, SIDE),
    inputs={"x": 'kind = "image"'},
)
def image_tensor(v: Variant, x: Any) -> Any:
    if v["red and blue exchanged"]:
        x = mb.reverse(x=x, axes=[1])
    if v["rows and columns exchanged"]:
        x = mb.transpose(x=x, perm=[0, 1, 3, 2])
    x = mb.mul(x=x, y=F16(1 / 16 if v["not divided by 255"] else 1 / 255))
    x = mb.conv(x=x, weight=v.weight(4, 3, 3, 3, scale=0.3), pad_type="same")
    return mb.tanh(x=x, name="y")


def _with_constant(name: str, file: str) -> None:
    @subject(
        f"constant, {file.rpartition('.')[2].partition('#')[0]}",
        "transposed, columns exchanged",
        name=name,
        x=half(1, C),
        basis=half(C, C),
        inputs={"basis": f'kind = "constant"\nfiles = "{file}"'},
    )
    def transform(v: Variant, x: Any, basis: Any) -> Any:
        x = mb.mul(x=x, y=v.weight(C, scale=1))
        if v["columns exchanged"]:
            basis = mb.reverse(x=basis, axes=[1])
        return mb.matmul(x=x, y=basis, transpose_y=v["transposed"], name="y")


for _name, _file in (
    ("npy-constant", "basis.npy"),
    ("npz-constant", "basis.npz#basis"),
    ("safetensors-constant", "basis.safetensors#basis"),
):
    _with_constant(_name, _file)
