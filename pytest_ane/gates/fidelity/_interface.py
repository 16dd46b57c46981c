"""The interface of an artifact: what its callers must know, held against what is declared.

Numbers show nothing of it: a package that takes float32 computes the same and copies twice as much
on a device, and one that takes BGR in place of RGB is nearly as good in grey pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.gates.verdict import some
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.model import entry_points, is_pipeline, read_model
from pytest_ane.mlprogram.records import (
    DType,
    Feature,
    MLModel,
    NonMaximumSuppression,
    Pipeline,
    Ref,
)
from pytest_ane.models.families import Port, Ports
from pytest_ane.probes.domains import FLOATS

_NAMED = 3
"""Lengths and labels that are named; the rest is counted."""


def differences(model: MLModel, ports: Ports, max_tokens: int) -> tuple[str, ...]:
    """What an artifact declares otherwise: `inputs x, mask: fp32 in place of fp16`.

    All ports are fp16, and T is from 1 to `max_tokens`. Outputs and optional inputs that are not
    declared are in nobody's way.
    """
    return _listed(
        (kind, name, fault)
        for kind, features, declared in _sides(model, ports)
        for name, fault in _differences(kind, declared, features, max_tokens)
    )


def _sides(
    model: MLModel | Pipeline, declared: Any
) -> Iterator[tuple[str, dict[str, Feature], Any]]:
    """Inputs, outputs and states by name, beside those of what declares the same three."""
    for kind in ("input", "output", "state"):
        mine, theirs = (getattr(side, f"{kind}s") for side in (model, declared))
        yield kind, {feature.name: feature for feature in mine}, theirs


def _listed(faults: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    names = grouped(((kind, fault), name) for kind, name, fault in faults)
    return tuple(
        f"{kind}{'s' * (len(alike) > 1)} {', '.join(alike)}: {fault}"
        for (kind, fault), alike in names.items()
    )


def against_package(
    model: MLModel | Pipeline, reference: MLModel | Pipeline
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an artifact's callers must do otherwise than the reference's, and what they need not.

    They need not heed the width of floats, which Core ML converts; lengths that are enumerated or
    fixed where the reference's are open, as the ANE likes them; and scale and bias of an image,
    which are operations of the program, so that numbers show them.
    """
    every = [
        (kind, other.name, fault, heeded)
        for kind, features, declared in _sides(model, reference)
        for other in declared
        for fault, heeded in _against(kind, features.get(other.name), other)
    ]
    for name in {f.name for f in model.inputs if f.kind == "image"}:
        mine, theirs = _scaled(model, name), _scaled(reference, name)
        every += (
            ("input", name, f"{k} {_numbers(mine[k])} in place of {_numbers(theirs[k])}", False)
            for k in mine if not np.allclose(mine[k], theirs[k], rtol=2e-3)
        )  # fmt: skip
    heeded, rest = (_listed(each[:3] for each in every if each[3] == at) for at in (True, False))
    return (*heeded, *_settings_apart(model, reference)), rest


def default_apart(package: Path, reference: Path) -> tuple[str, ...]:
    """Whether callers that name no function get another one than of the reference."""
    both = (package, reference)
    if not all(entry_points(path) and not is_pipeline(path) for path in both):
        return ()
    mine, theirs = (read_model(path, weights=False).main.name for path in both)
    return () if mine == theirs else (f"default function {mine} in place of {theirs}",)


def _against(kind: str, mine: Feature | None, theirs: Feature) -> Iterator[tuple[str, bool]]:
    """Differences of one feature, and whether callers must heed each."""
    if mine is None:
        # Outputs that are missing are refused, and states that callers do not see may be others.
        yield from [("missing", True)] if kind == "input" else ()
        return
    if mine.kind != theirs.kind:
        yield f"of kind {mine.kind} in place of {theirs.kind}", True
        return
    if mine.color != theirs.color:
        yield f"{mine.color} in place of {theirs.color}", True
    elif mine.dtype is not theirs.dtype:
        floats = mine.dtype in FLOATS and theirs.dtype in FLOATS
        yield f"{mine.dtype} in place of {theirs.dtype}", not floats
    if kind == "input":
        if theirs.optional and not mine.optional:
            yield "required in place of optional", True
        elif None not in (mine.default, theirs.default) and mine.default != theirs.default:
            yield f"default {mine.default:g} in place of {theirs.default:g}", True
        yield from _narrower(mine, theirs)
    elif kind == "state" and mine.shape != theirs.shape:
        smaller = prod(mine.shape) < prod(theirs.shape)
        yield f"{list(mine.shape)} in place of {list(theirs.shape)}", smaller


def _narrower(mine: Feature, theirs: Feature) -> Iterator[tuple[str, bool]]:
    """Shapes that the reference takes and the artifact does not."""
    own, other = {*mine.enumerated} or {mine.shape}, {*theirs.enumerated} or {theirs.shape}
    if not (mine.ranges or theirs.ranges):
        if left := sorted(other - own):
            alike = bool(mine.enumerated) == bool(theirs.enumerated)
            yield f"does not take the shape {some(map(list, left), _NAMED)}", alike
        return
    if len(mine.extents) != len(theirs.extents):
        yield f"rank {len(mine.extents)} in place of {len(theirs.extents)}", True
        return
    both = zip(mine.extents, theirs.extents, strict=True)
    for axis, ((low, high), (least, most)) in enumerate(both):
        if low > least or (high is not None and (most is None or high < most)):
            fault = f"{_range(low, high)} in place of {_range(least, most)} along axis {axis}"
            yield fault, bool(mine.ranges) and low < (high or low + 1) and most is not None


def _scaled(model: MLModel | Pipeline, name: str) -> dict[str, Any]:
    """Scale and bias of an image, which coremltools makes operations of these names."""
    ops = {} if isinstance(model, Pipeline) else {op.name: op for op in model.main.walk()}
    found: dict[str, Any] = {}
    for what, end in (("scale", "scaled"), ("bias", "biased")):
        op = ops.get(f"{name}__{end}__")
        value = None if op is None else op.only("y")
        value = ops[value.name].attributes["val"] if isinstance(value, Ref) else value
        found[what] = float(what == "scale") if value is None else value.data
    return found


def _numbers(values: Any) -> str:
    return some((f"{x:.3g}" for x in np.ravel(values)), _NAMED)


def _settings_apart(model: MLModel | Pipeline, reference: MLModel | Pipeline) -> tuple[str, ...]:
    """Suppressions and classifiers: `part nms: iouThreshold 0.7 in place of 0.45`.

    Numbers show it only where a probe has boxes between the two; labels no number shows.
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
    kind: str, declared: Sequence[Port], features: dict[str, Feature], max_tokens: int
) -> Iterator[tuple[str, str]]:
    for port in declared:
        if (feature := features.pop(port.name, None)) is None:
            yield port.name, "missing"
            continue
        if feature.kind not in ("tensor", "state"):
            yield port.name, f"of kind {feature.kind}"
        elif feature.dtype is not DType.FP16:
            yield port.name, f"{feature.dtype} in place of fp16"
        faults = _shape(port, feature, max_tokens, flexible=kind != "output")
        yield from ((port.name, fault) for fault in dict.fromkeys(faults))
    for name, feature in features.items():
        if kind == "state" or (kind == "input" and not feature.optional):
            yield name, "not declared"


def _shape(port: Port, feature: Feature, max_tokens: int, *, flexible: bool) -> Iterator[str]:
    """Of outputs, packages leave the shape open, and compiled models have the default one."""
    if (extents := feature.extents) and len(extents) != len(port.shape):
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
