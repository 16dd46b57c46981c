"""Shapes of a model's inputs at a T of its flexible axes."""

from __future__ import annotations

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import Feature, MLModel, TensorType

Shape = tuple[int, ...]


def input_shapes(model: MLModel, tokens: int) -> tuple[dict[str, Shape], bool]:
    """Shapes of all inputs by name, with `tokens` along every flexible axis; whether there is one.

    Raises:
        ExecutionError: an input does not take so many, or its shape is left open.
    """
    features = {feature.name: feature for feature in model.inputs}
    shapes, flexible = {}, False
    for named in model.main.inputs:
        if isinstance(named.type, TensorType):
            shape, bends = _shape(model, named.name, named.type, features, tokens)
            shapes[named.name], flexible = shape, flexible or bends
    return shapes, flexible


def largest(model: MLModel, most: int) -> int:
    """The largest T that every flexible axis takes, up to `most`; 1 where there is none."""
    found = []
    for feature in model.inputs:
        axes = zip(*feature.enumerated, strict=True) if feature.enumerated else ()
        found += [max(axis) for axis in axes if len(set(axis)) > 1]
        found += [most if high is None else high for low, high in feature.ranges if low != high]
    return min([most, *found]) if found else 1


def _shape(
    model: MLModel, name: str, kind: TensorType, features: dict[str, Feature], tokens: int
) -> tuple[Shape, bool]:
    if all(d is not None for d in kind.shape):
        return tuple(int(d or 0) for d in kind.shape), False
    feature = features.get(name)
    if feature is None or len(feature.shape) != len(kind.shape):
        raise ExecutionError(f"{model.path}: input {name!r} has the open shape {kind}.")
    if feature.enumerated:
        return _enumerated(model, feature, tokens), True
    ranges = feature.ranges or tuple((d, d) for d in feature.shape)
    for low, high in ranges:
        if low != high and not (low <= tokens and (high is None or tokens <= high)):
            raise ExecutionError(
                f"{model.path}: T is {tokens}, and input {name!r} takes "
                f"{low} to {'any' if high is None else high}."
            )
    return tuple(low if low == high else tokens for low, high in ranges), True


def _enumerated(model: MLModel, feature: Feature, tokens: int) -> Shape:
    """The listed shape whose varying axes all are `tokens`."""
    varies = [len(set(axis)) > 1 for axis in zip(*feature.enumerated, strict=True)]
    for shape in feature.enumerated:
        if all(d == tokens for d, free in zip(shape, varies, strict=True) if free):
            return shape
    raise ExecutionError(
        f"{model.path}: T is {tokens}, and input {feature.name!r} takes the shapes "
        f"{', '.join(map(str, map(list, feature.enumerated)))}."
    )
