"""Kinds of outputs, and lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol

from tests.own_packages.subjects import Variant, ct, half, subject

T, C = 8, 16
F16 = np.float16
LABELS = ["ant", "bee", "cat", "dog", "eel", "fox"]
CLASSIFIER = [
    "labels permuted",
    "labels of rare classes exchanged",
    "softmax forgotten",
    "softmax twice",
    "constant class",
]


def _scores(v: Variant, x: Any) -> Any:
    y = mb.matmul(x=x, y=v.weight(C, len(LABELS), scale=0.8))
    if v["constant class"]:
        y = mb.add(x=mb.mul(x=y, y=F16(0)), y=np.eye(6, dtype=F16)[2:3] * F16(4))
    if not v["softmax forgotten"]:
        y = mb.softmax(x=y, axis=-1)
    if v["softmax twice"]:
        y = mb.softmax(x=y, axis=-1)
    return mb.mul(x=y, y=F16(1), name="probabilities")


def _labels(texts: bool) -> Any:
    def convert(v: Variant) -> dict[str, Any]:
        labels: list[Any] = [*LABELS] if texts else list(range(6))
        if v["labels permuted"]:
            labels = labels[1:] + labels[:1]
        if v["labels of rare classes exchanged"]:
            labels = [*labels[:-2], labels[-1], labels[-2]]
        return {"classifier_config": ct.ClassifierConfig(labels)}

    return convert


@subject("classifier, labels are texts", CLASSIFIER, x=half(1, C), convert=_labels(True))
def text_labels(v: Variant, x: Any) -> Any:
    return _scores(v, x)


@subject("classifier, labels are integers", CLASSIFIER, x=half(1, C), convert=_labels(False))
def whole_labels(v: Variant, x: Any) -> Any:
    return _scores(v, x)


@subject(
    "integer output", "counted from 1, least for greatest, along the other axis", x=half(1, C, C)
)
def chosen(v: Variant, x: Any) -> Any:
    y = mb.matmul(x=x, y=v.weight(C, C))
    axis = 1 if v["along the other axis"] else 2
    arg = mb.reduce_argmin if v["least for greatest"] else mb.reduce_argmax
    first = np.int32(1 if v["counted from 1"] else 0)
    return mb.add(x=arg(x=y, axis=axis, keep_dims=False), y=first, name="y")


@subject(
    "scalar output", "gain 2, negated, one input left out, constant", x=half(1, 4)
)  # fmt: skip
def score(v: Variant, x: Any) -> Any:
    weight = v.weight(4, 1)
    if v["one input left out"]:
        weight[np.abs(weight).argmax()] = 0
    y = mb.tanh(x=mb.matmul(x=x, y=weight))
    if v["constant"]:
        y = mb.add(x=mb.mul(x=y, y=F16(0)), y=F16(0.5))
    return mb.mul(x=y, y=F16(2 if v["gain 2"] else -1 if v["negated"] else 1), name="y")


@subject(
    "several outputs",
    "exchanged, second one wrong, second one zero, second one missing, third one NaN",
    x=half(1, T, C),
)
def several(v: Variant, x: Any) -> Any:
    first, second, third = (v.weight(C, C) for _ in range(3))
    if v["exchanged"]:
        first, second = second, first
    if v["second one wrong"]:
        second = second.T.copy()
    if v["second one zero"]:
        second = second * F16(0)
    outputs = [mb.matmul(x=x, y=w, name=n) for w, n in ((first, "q"), (second, "k"))]
    y = mb.abs(x=mb.matmul(x=x, y=third))
    y = mb.sub(x=y, y=F16(9)) if v["third one NaN"] else y
    root = mb.sqrt(x=y, name="root")
    return (outputs[0], root) if v["second one missing"] else (*outputs, root)


@subject(
    "output beside a large residual path",
    "contribution lost, contribution of other weights, added twice",
    x=half(1, T, C),
)
def residual(v: Variant, x: Any) -> Any:
    """As a block of a transformer, a tenth as large as what it is added to."""
    up, down = v.weight(C, 4 * C), v.weight(4 * C, C, scale=0.02)
    if v["contribution of other weights"]:
        down = down[::-1].copy()
    y = mb.matmul(x=mb.gelu(x=mb.matmul(x=x, y=up), mode="TANH_APPROXIMATION"), y=down)
    y = mb.mul(x=y, y=F16(0 if v["contribution lost"] else 2 if v["added twice"] else 1))
    return mb.add(x=x, y=y, name="y")


def _only_at(x: Any, hit: Any, y: Any) -> Any:
    """`y` where a length `T` of `x [1, T, C]` is hit, its channels reversed."""
    length = mb.gather(x=mb.shape(x=x), indices=np.int32(1), axis=0)
    bad = mb.cast(x=hit(length), dtype="fp16")
    good = mb.sub(x=F16(1), y=bad)
    spoilt = mb.mul(x=mb.reverse(x=y, axes=[2]), y=bad)
    return mb.add(x=mb.mul(x=y, y=good), y=spoilt, name="y")


SHAPES = (2, 3, 5, 9, 12)
LENGTH = get_new_symbol()


@subject(
    "enumerated shapes",
    [f"wrong at T = {n}" for n in SHAPES],
    x=half(1, LENGTH, C),
    convert=lambda v: {
        "inputs": [ct.TensorType("x", ct.EnumeratedShapes([(1, n, C) for n in SHAPES]), dtype=F16)]
    },
)
def enumerated(v: Variant, x: Any) -> Any:
    at = next((n for n in SHAPES if v[f"wrong at T = {n}"]), -1)
    y = mb.matmul(x=x, y=v.weight(C, C))
    return _only_at(x, lambda length: mb.equal(x=length, y=np.int32(at)), y)


RANGES = {
    "wrong at T = 1": (1, 1),
    "wrong at the largest T": (64, 64),
    "wrong from T = 33 on": (33, 64),
    "wrong for T = 2 to 4": (2, 4),
    "wrong for T = 5 to 8": (5, 8),
}


@subject(
    "flexible range",
    [*RANGES, "last position zero", "first position exchanged with the second"],
    x=half(1, LENGTH, C),
    convert=lambda v: {
        "inputs": [ct.TensorType("x", (1, ct.RangeDim(1, 64, default=8), C), dtype=F16)]
    },
)
def flexible(v: Variant, x: Any) -> Any:
    first, last = next((r for f, r in RANGES.items() if v[f]), (0, 0))
    y = mb.matmul(x=x, y=v.weight(C, C))
    if v["last position zero"] or v["first position exchanged with the second"]:
        length = mb.gather(x=mb.shape(x=x), indices=np.int32(1), axis=0)
        order = mb.range_1d(start=np.int32(0), end=length, step=np.int32(1))
        if v["last position zero"]:
            live = mb.less(x=order, y=mb.sub(x=length, y=np.int32(1)))
            live = mb.expand_dims(x=mb.cast(x=live, dtype="fp16"), axes=[-1])
            return mb.mul(x=y, y=live, name="y")
        early = mb.cast(x=mb.less(x=order, y=np.int32(2)), dtype="int32")
        swapped = mb.add(x=order, y=mb.mul(x=early, y=mb.sub(x=np.int32(1),
                         y=mb.mul(x=order, y=np.int32(2)))))  # fmt: skip
        swapped = mb.minimum(x=swapped, y=mb.sub(x=length, y=np.int32(1)))
        return mb.gather(x=y, indices=swapped, axis=1, name="y")
    return _only_at(
        x,
        lambda length: mb.logical_and(
            x=mb.greater_equal(x=length, y=np.int32(first)),
            y=mb.less_equal(x=length, y=np.int32(last)),
        ),
        y,
    )


@subject(
    "a program of other operations than its uncompressed one",
    "wrong at 17 alone, clipped at 100",
    x=half(1, LENGTH, C),
    shard='uncompressed = "rewritten/reference.mlpackage"',
    convert=lambda v: {
        "inputs": [ct.TensorType("x", (1, ct.RangeDim(1, 64, default=8), C), dtype=F16)]
    },
)
def rewritten(v: Variant, x: Any) -> Any:
    """Every package but the reference adds its values in two steps."""
    if v["clipped at 100"]:
        x = mb.clip(x=x, alpha=F16(-100), beta=F16(100))
    y = mb.matmul(x=x, y=v.weight(C, C))
    y = mb.sub(x=mb.mul(x=y, y=F16(2)), y=y) if v.noise or v.fault else y
    if v["wrong at 17 alone"]:
        return _only_at(x, lambda length: mb.equal(x=length, y=np.int32(17)), y)
    return mb.mul(x=y, y=F16(1), name="y")
