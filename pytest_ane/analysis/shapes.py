"""Shapes without arithmetic: inputs at a T, results of costly operations, and what these cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.core.arrays import Array
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil import read_model
from pytest_ane.mil.records import Feature, MLModel, TensorType
from pytest_ane.reference.ops.conv import conv as convolve
from pytest_ane.reference.ops.linear import matmul as multiply

Shape = tuple[int, ...]
Parameters = Mapping[str, Any]


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


def largest_tokens(package: Path, most: int, function: str | None = None) -> int:
    """The largest T, up to `most`, that every flexible axis of a function takes; 1 without any.

    Raises:
        ProgramError: it cannot be read.
    """
    return largest(read_model(package, weights=False, function=function), most)


def largest(model: MLModel, most: int) -> int:
    """The largest T that every flexible axis takes, up to `most`; 1 where there is none."""
    ends: list[int] = []
    for feature in model.inputs:
        axes = zip(*feature.enumerated, strict=True) if feature.enumerated else ()
        ends += [max(axis) for axis in axes if len(set(axis)) > 1]
        ends += [most if high is None else high for low, high in feature.ranges if low != high]
    return min([most, *ends]) if ends else 1


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


def zeros(shape: Shape, dtype: Any = np.float32) -> Array:
    """Zeros that take the memory of one; read-only."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _conv(x: Any, weight: Any, bias: Any = None, groups: int = 1, **spatial: Any) -> Array:
    """The extents are those of one channel's convolution with one kernel."""
    one = convolve(zeros((1, 1, *x.shape[2:])), zeros((1, 1, *weight.shape[2:])), **spatial)
    return zeros((len(x), weight.shape[0], *one.shape[2:]))


def _linear(x: Any, weight: Any, bias: Any = None) -> Array:
    return zeros((*x.shape[:-1], weight.shape[0]))


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """The extents are those of a product that sums over one element only."""
    x = x[..., :1, :] if transpose_x and x.ndim > 1 else x[..., :1]
    y = y[..., :1] if transpose_y and y.ndim > 1 else y[..., :1, :] if y.ndim > 1 else y[:1]
    return zeros(np.shape(multiply(x, y, transpose_x, transpose_y)))


STAND_INS: Mapping[str, Callable[..., Array]] = {
    "conv": _conv,
    "linear": _linear,
    "matmul": _matmul,
}
"""By operation; they take what the operation takes."""


def macs(op: str, parameters: Parameters, result: Shape) -> int:
    """Multiply-accumulates of one call; 0 for an operation that multiplies no matrices.

    Args:
        op: its type.
        parameters: arrays and constants by MIL's names; of arrays only the shapes count.
        result: shape of its first result.
    """
    count = _COUNTS.get(op)
    return count(parameters, result) if count else 0


def _conv_macs(parameters: Parameters, result: Shape) -> int:
    """Every element of the result sums over the kernel of its channel, `[C / groups, *K]`."""
    return math.prod(result) * math.prod(_extents(parameters["weight"])[1:])


def _conv_transpose(parameters: Parameters, result: Shape) -> int:
    """Every element of the input meets the kernels of its channel, `[O / groups, *K]`."""
    return math.prod(_extents(parameters["x"])) * math.prod(_extents(parameters["weight"])[1:])


def _linear_macs(parameters: Parameters, result: Shape) -> int:
    return math.prod(result) * int(parameters["weight"].shape[1])


def _matmul_macs(parameters: Parameters, result: Shape) -> int:
    x = parameters["x"]
    turned = parameters.get("transpose_x", False) and x.ndim > 1
    return math.prod(result) * int(x.shape[-2 if turned else -1])


def _einsum(parameters: Parameters, result: Shape) -> int:
    """Every combination of the letters' extents; one that broadcasts has its larger extent."""
    operands = parameters["equation"].replace(" ", "").partition("->")[0].split(",")
    extents: dict[str, int] = {}
    for letters, value in zip(operands, parameters["values"], strict=True):
        for letter, extent in zip(letters, value.shape, strict=True):
            extents[letter] = max(extent, extents.get(letter, 1))
    return math.prod(extents.values())


def _attention_macs(parameters: Parameters, result: Shape) -> int:
    """Q K^T and the product with V: `[*B, L, E]`, `[*B, S, E]` and `[*B, S, EV]`."""
    query, value = _extents(parameters["query"]), _extents(parameters["value"])
    return math.prod(query[:-1]) * value[-2] * (query[-1] + value[-1])


def _recurrent(parameters: Parameters, result: Shape) -> int:
    """Every step of `x [T, B, I]` multiplies by all weights, in either direction."""
    weights = (v for k, v in parameters.items() if k.startswith("weight") and v is not None)
    return math.prod(_extents(parameters["x"])[:2]) * sum(math.prod(_extents(w)) for w in weights)


def _extents(value: Any) -> Shape:
    return tuple(int(extent) for extent in value.shape)


_COUNTS: dict[str, Callable[[Parameters, Shape], int]] = {
    "conv": _conv_macs,
    "conv_transpose": _conv_transpose,
    "einsum": _einsum,
    "gru": _recurrent,
    "linear": _linear_macs,
    "lstm": _recurrent,
    "matmul": _matmul_macs,
    "rnn": _recurrent,
    "scaled_dot_product_attention": _attention_macs,
}
