"""Multiply-accumulates of one call of an operation, from the shapes it takes and gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pytest_ane.mlprogram.executor.shapes import Parameters, Shape


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
