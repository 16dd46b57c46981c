"""Normalisation layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.executor.registry import register


@register("layer_norm")
def layer_norm(
    x: Any, axes: Any = None, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Any:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta` over axes, all where none are given."""
    axes = tuple(range(x.ndim)) if axes is None else tuple(integers(axes))
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    y = centred / np.sqrt(variance + np.float32(epsilon))
    positive = sorted(a % x.ndim for a in axes)
    shape = [d if i in positive else 1 for i, d in enumerate(x.shape)]
    y = y if gamma is None else y * np.reshape(gamma, shape)
    return y if beta is None else y + np.reshape(beta, shape)


@register("batch_norm")
def batch_norm(
    x: Any, mean: Any, variance: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Any:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta`, parameters by channel (axis 1)."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale = 1 / np.sqrt(variance + np.float32(epsilon))
    scale = scale if gamma is None else scale * gamma
    y = (x - np.reshape(mean, shape)) * np.reshape(scale, shape)
    return y if beta is None else y + np.reshape(beta, shape)


@register("instance_norm")
def instance_norm(x: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5) -> Any:
    """As `batch_norm`, with mean and variance of each image's own channels."""
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    y = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + np.float32(epsilon))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = y if gamma is None else y * np.reshape(gamma, shape)
    return y if beta is None else y + np.reshape(beta, shape)


@register("l2_norm")
def l2_norm(x: Any, epsilon: float = 1e-6) -> Any:
    """`x / sqrt(sum of squares over the last three axes + epsilon)`."""
    square = np.square(x).sum(axis=(-3, -2, -1), keepdims=True)
    return x / np.sqrt(square + np.float32(epsilon))


@register("local_response_norm")
def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """`x / (k + alpha / size s)^beta`, s the sum of squares of `size` channels (axis 1) around.

    Of an even number, the odd one comes before, as in torch, which MIL's tests compare with.

    Raises:
        ValueError: there is no channel axis, or the size is less than 1.
    """
    if x.ndim < 2 or size < 1:
        raise ValueError(f"{size} channels around do not exist in {x.shape}")
    before = min(size // 2, x.shape[1])
    after = min(size - 1 - size // 2, x.shape[1])
    pads = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(np.square(x), pads)
    channels = x.shape[1]
    total = sum(squares[:, i : i + channels] for i in range(before + 1 + after))
    return x / np.power(k + alpha / size * total, beta)
