"""Reductions along axes (all axes where none are given), running sums, and normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import integers


def _register(name: str, function: Any) -> None:
    @register(f"reduce_{name}", moves=name in _CHOOSE)
    def compute(x: Any, axes: Any = None, keep_dims: bool = False) -> Any:
        axis = None if axes is None else tuple(integers(axes))
        return function(x, axis=axis, keepdims=keep_dims)


_CHOOSE = frozenset(("max", "min"))


def _mean(x: Any, axis: Any, keepdims: bool) -> Any:
    total = np.add.reduce(x, axis=axis, keepdims=keepdims)
    return total / (x.size // max(total.size, 1))


def _sum_square(x: Any, axis: Any, keepdims: bool) -> Any:
    return np.square(x).sum(axis=axis, keepdims=keepdims)


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    top = x.max(axis=axis, keepdims=True)
    top = np.where(np.isinf(top), x.dtype.type(0), top)  # Infinity less infinity would be NaN.
    total = np.log(np.exp(x - top).sum(axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


_FUNCTIONS = {
    "l1_norm": lambda x, axis, keepdims: np.abs(x).sum(axis=axis, keepdims=keepdims),
    "l2_norm": lambda x, axis, keepdims: np.sqrt(_sum_square(x, axis, keepdims)),
    "log_sum": lambda x, axis, keepdims: np.log(x.sum(axis=axis, keepdims=keepdims)),
    "log_sum_exp": _log_sum_exp,
    "max": np.maximum.reduce,
    "mean": _mean,
    "min": np.minimum.reduce,
    "prod": np.multiply.reduce,
    "sum": np.add.reduce,
    "sum_square": _sum_square,
}
for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)


def _register_arg(name: str, function: Any) -> None:
    @register(f"reduce_{name}")
    def compute(
        x: Any, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
    ) -> Any:
        return np.asarray(function(x, axis=axis, keepdims=keep_dims)).astype(output_dtype.lower())


_register_arg("argmax", np.argmax)
_register_arg("argmin", np.argmin)


@register("cumsum")
def cumsum(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    """Sums of all up to each element along an axis, or before it; in reverse, from the last on."""
    x = np.asarray(x)
    if reverse:
        return np.flip(cumsum(np.flip(x, axis), axis, exclusive), axis)
    sums = np.cumsum(x, axis=axis, dtype=x.dtype)
    if exclusive:
        sums = np.roll(sums, 1, axis)
        np.moveaxis(sums, axis, 0)[:1] = 0
    return sums


def _affine(y: Any, gamma: Any, beta: Any, shape: Sequence[int]) -> Any:
    y = y if gamma is None else y * np.reshape(gamma, shape)
    return y if beta is None else y + np.reshape(beta, shape)


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float) -> Any:
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon))


@register("layer_norm")
def layer_norm(
    x: Any, axes: Any = None, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Any:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta` over axes, all where none are given."""
    chosen = {a % x.ndim for a in (range(x.ndim) if axes is None else integers(axes))}
    shape = [d if i in chosen else 1 for i, d in enumerate(x.shape)]
    return _affine(_normalized(x, tuple(sorted(chosen)), epsilon), gamma, beta, shape)


@register("batch_norm")
def batch_norm(
    x: Any, mean: Any, variance: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5
) -> Any:
    """`gamma (x - mean) / sqrt(variance + epsilon) + beta`, parameters by channel (axis 1)."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale = (1 if gamma is None else gamma) / np.sqrt(variance + np.float32(epsilon))
    return _affine(x - np.reshape(mean, shape), scale, beta, shape)


@register("instance_norm")
def instance_norm(x: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5) -> Any:
    """As `batch_norm`, with mean and variance of each image's own channels."""
    normalized = _normalized(x, tuple(range(2, x.ndim)), epsilon)
    return _affine(normalized, gamma, beta, (1, -1) + (1,) * (x.ndim - 2))


@register("l2_norm")
def l2_norm(x: Any, epsilon: float = 1e-6) -> Any:
    """`x / sqrt(sum of squares over the last three axes + epsilon)`."""
    return x / np.sqrt(_sum_square(x, (-3, -2, -1), keepdims=True) + np.float32(epsilon))


@register("local_response_norm")
def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """`x / (k + alpha / size s)^beta`, s the sum of squares of `size` channels (axis 1) around."""
    import torch  # Few programs have the operation, and the import takes seconds.

    if x.ndim < 3 or size < 1:
        raise ValueError(f"{size} channels around do not exist in {x.shape}")
    # All channels are within twice their number; torch would lay out the rest as zeros.
    near = min(int(size), 2 * x.shape[1] + int(size) % 2)
    numbers = near, float(alpha) * near / int(size), float(beta), float(k)
    return torch.nn.functional.local_response_norm(torch.from_numpy(np.array(x)), *numbers).numpy()
