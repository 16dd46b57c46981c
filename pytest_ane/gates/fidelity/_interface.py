"""An artifact's inputs, outputs and states against those that its family or builder declares.

The host calls a shard by its declared ports, and numbers show nothing of them: a package that takes
float32, which the executor converts, computes the same and copies twice as much on a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_ane.gates.verdict import some
from pytest_ane.mlprogram.records import (
    DType,
    Feature,
    MLModel,
    NonMaximumSuppression,
    Pipeline,
    Ref,
)
from pytest_ane.models.families import Port, Ports

_NAMED = 3
"""Lengths and labels that are named; the rest is counted."""


def differences(model: MLModel, ports: Ports, max_tokens: int) -> tuple[str, ...]:
    """What an artifact declares otherwise: `inputs x, mask: fp32 in place of fp16`.

    All ports are fp16, and T is from 1 to `max_tokens`. Outputs and optional inputs that are not
    declared are in nobody's way.
    """
    sides: tuple[tuple[str, Sequence[Port], Sequence[Feature]], ...] = (
        ("input", ports.inputs, model.inputs),
        ("output", ports.outputs, model.outputs),
        ("state", ports.states, model.states),
    )
    names: dict[tuple[str, str], list[str]] = {}
    for kind, declared, actual in sides:
        for name, difference in _differences(kind, declared, actual, max_tokens):
            names.setdefault((kind, difference), []).append(name)
    return tuple(
        f"{kind}{'s' * (len(alike) > 1)} {', '.join(alike)}: {difference}"
        for (kind, difference), alike in names.items()
    )


def other_settings(model: MLModel | Pipeline, reference: MLModel | Pipeline) -> tuple[str, ...]:
    """Where suppressions and classifiers are set otherwise than the reference's.

    `part nms: iouThreshold 0.7 in place of 0.45`. Numbers show it only where a probe has boxes
    between the two, or where it is of a class whose label is another; labels no number shows.
    """
    theirs = _settings(reference)
    return tuple(
        f"{name}{key} {_setting(value, expected[key])}"
        for (name, mine), expected in zip(_settings(model).items(), theirs.values(), strict=False)
        for key, value in mine.items()
        if value != expected.get(key, value)
    )


def _settings(model: MLModel | Pipeline) -> dict[str, Mapping[str, Any]]:
    if isinstance(model, MLModel):
        return {"": _labels(model)}
    parts = zip(model.names, model.parts, strict=True)
    return {
        f"part {name}: ": part.settings
        if isinstance(part, NonMaximumSuppression)
        else _labels(part)
        for name, part in parts
    }


def _labels(model: MLModel) -> Mapping[str, Any]:
    values = {op.name: op.attributes.get("val") for op in model.main.walk() if op.op == "const"}
    for operation in model.main.walk():
        if operation.op == "classify":
            (classes,) = operation.inputs["classes"]
            value = values.get(classes.name) if isinstance(classes, Ref) else classes
            if value is not None:
                return {"classLabels": tuple(np.ravel(np.asarray(value.data)).tolist())}
    return {}


def _setting(value: Any, expected: Any) -> str:
    if not (isinstance(value, tuple) and isinstance(expected, tuple)):
        return f"{value} in place of {expected}"
    if len(value) != len(expected):
        return f"of {len(value)} classes in place of {len(expected)}"
    differ = [pair for pair in zip(value, expected, strict=True) if pair[0] != pair[1]]
    pairs = differ if len(value) > _NAMED else zip(value, expected, strict=True)
    mine, theirs = zip(*pairs, strict=True)
    return f"{some(mine, _NAMED)} in place of {some(theirs, _NAMED)}"


def _differences(
    kind: str, declared: Sequence[Port], actual: Sequence[Feature], max_tokens: int
) -> Iterator[tuple[str, str]]:
    features = {feature.name: feature for feature in actual}
    for port in declared:
        if (feature := features.pop(port.name, None)) is None:
            yield port.name, "missing"
            continue
        if feature.kind not in ("tensor", "state"):
            yield port.name, f"of kind {feature.kind}"
        elif feature.dtype is not DType.FP16:
            yield port.name, f"{feature.dtype} in place of fp16"
        for difference in dict.fromkeys(
            _shape(port, feature, max_tokens, flexible=kind != "output")
        ):
            yield port.name, difference
    for name, feature in features.items():
        if kind == "state" or (kind == "input" and not feature.optional):
            yield name, "not declared"


def _shape(port: Port, feature: Feature, max_tokens: int, *, flexible: bool) -> Iterator[str]:
    """Of outputs, packages leave the shape open, and compiled models have the default one."""
    extents = feature.ranges or [(size, size) for size in feature.shape]
    if feature.enumerated:
        extents = [(min(sizes), max(sizes)) for sizes in zip(*feature.enumerated, strict=False)]
    if extents and len(extents) != len(port.shape):
        yield f"rank {len(extents)} in place of {len(port.shape)}"
        return
    for axis, (size, (low, high)) in enumerate(zip(port.shape, extents, strict=False)):
        if size != "T" and (low, high) != (size, size):
            yield f"{_range(low, high)} in place of {size} along axis {axis}"
        elif size == "T" and flexible and (low, high) != (1, max_tokens):
            yield f"T = {_range(low, high)} in place of {_range(1, max_tokens)}"
        elif size == "T" and flexible and feature.enumerated:
            lengths = sorted({shape[axis] for shape in feature.enumerated})
            if len(lengths) < max_tokens:
                yield f"T = {some(lengths, _NAMED)} alone in place of {_range(1, max_tokens)}"


def _range(low: int, high: int | None) -> str:
    if low == high:
        return str(low)
    return f"{low} and more" if high is None else f"{low} to {high}"
