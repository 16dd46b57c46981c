"""Tensors filled with few numbers: constants, ranges, one-hot vectors, bands; and random ones.

Random numbers are the same on every machine and in every run. Bits come from the counter-based
generator Philox keyed by the seed, and floats from them by numpy's legacy generator, whose streams
are frozen. Core ML's own generator is not documented, so only distributions can agree with a
device's, not numbers. Without a seed, as with seed -1, `DEFAULT_SEED` is used. Operations with one
seed, and runs of one session, give the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import integers


def _typed(value: Any) -> Any:
    if type(value) is float:
        return np.asarray(value, np.float32)
    return np.asarray(value, np.int32) if type(value) is int else np.asarray(value)


# Of the value's type.
register("fill", moves=True)(lambda shape, value=0.0: np.full(integers(shape), _typed(value)))
register("fill_like", opset="iOS16", moves=True)(
    lambda ref_tensor, value=0.0: np.full(np.shape(ref_tensor), _typed(value))
)


@register("one_hot", moves=True)
def one_hot(
    indices: Any, one_hot_vector_size: int, axis: int = -1, on_value: Any = 1, off_value: Any = 0
) -> Any:
    """`on_value` where a new axis' position is the index, else `off_value`.

    An index below 0 or beyond the vectors gives `off_value` everywhere, as in `tf.one_hot`.
    """
    size = int(one_hot_vector_size)
    if size < 0:
        raise ValueError(f"one_hot_vector_size {size} is negative")
    where = np.expand_dims(indices, axis)
    rank = where.ndim
    places = np.arange(size).reshape([-1 if n == axis % rank else 1 for n in range(rank)])
    return np.where(where == places, _typed(on_value), _typed(off_value))


@register("range_1d", moves=True)
def range_1d(start: Any, end: Any, step: Any) -> Any:
    """`start`, `start + step`, ... up to, and without, `end`.

    Floats count ceil((end - start) / step) values, by arithmetic of their own type.
    """
    first, last, by = (_typed(v).reshape(()) for v in (start, end, step))
    dtype = np.result_type(first, last, by)
    if by == 0:
        raise ValueError("step is 0")
    if dtype.kind in "iu":
        return np.arange(int(first), int(last), int(by), dtype=dtype)
    count = max(0, int(np.ceil(((last - first) / by).astype(dtype))))
    return (first + np.arange(count, dtype=np.float64) * by).astype(dtype)


@register("band_part", moves=True)
def band_part(x: Any, lower: int = -1, upper: int = -1) -> Any:
    """Matrices with zeros (also for infinity and NaN) outside a band about the diagonal.

    So many diagonals are kept below and above the main one; all where the number is negative.
    """
    x = np.asarray(x)
    if x.ndim < 2:
        raise ValueError(f"x of shape {x.shape} is not a matrix")
    below = np.subtract.outer(np.arange(x.shape[-2]), np.arange(x.shape[-1]))
    band = ((lower < 0) | (below <= lower)) & ((upper < 0) | (-below <= upper))
    return np.where(band, x, x.dtype.type(0))


DEFAULT_SEED = 1729


def _numbers(seed: int | None) -> Any:
    """The seed's own generator, of the kind whose numbers numpy never changes (NEP 19)."""
    key = DEFAULT_SEED if seed is None or int(seed) == -1 else int(seed) % 2**32
    return np.random.RandomState(np.random.Philox(key=key))


@register("random_uniform")
def random_uniform(shape: Any, low: float = 0.0, high: float = 1.0, seed: int | None = -1) -> Any:
    """Numbers uniform in [low, high); `low` where both are equal."""
    numbers = low + (high - low) * _numbers(seed).random_sample(integers(shape))
    # Rounding to float32 must not reach the end that is excluded.
    most = np.maximum(np.nextafter(np.float32(high), np.float32(-np.inf)), np.float32(low))
    return np.minimum(numbers.astype(np.float32), most)


@register("random_normal")
def random_normal(shape: Any, mean: float = 0.0, stddev: float = 1.0, seed: int | None = -1) -> Any:
    """Normally distributed numbers."""
    numbers = _numbers(seed).standard_normal(integers(shape))
    return (mean + stddev * numbers).astype(np.float32)


@register("random_bernoulli")
def random_bernoulli(shape: Any, prob: float = 0.5, seed: int | None = -1) -> Any:
    """1 with probability `prob`, else 0."""
    return (_numbers(seed).random_sample(integers(shape)) < prob).astype(np.float32)


@register("random_categorical")
def random_categorical(x: Any, mode: str = "logits", size: int = 1, seed: int | None = -1) -> Any:
    """Indices drawn, with replacement, from the distributions along the last axis, as floats.

    `x (..., classes)` holds logits, or probabilities that need not add up to 1; of each
    distribution `size` are drawn, (..., size).
    """
    if mode not in ("logits", "probs"):
        raise ValueError(f"mode is {mode!r}, not 'logits' or 'probs'")
    x = np.asarray(x, np.float64)
    weights = np.exp(x - x.max(axis=-1, keepdims=True)) if mode == "logits" else x
    total = np.cumsum(weights, axis=-1)
    if not (np.all(weights >= 0) and np.all(total[..., -1] > 0) and np.isfinite(total).all()):
        raise ValueError(f"{mode} give no distribution: NaN, infinite, negative, or all zero")
    shape = (*x.shape[:-1], int(size))
    drawn = _numbers(seed).random_sample(shape)
    # Cumulated probabilities end in exactly 1, which no drawn number reaches. The last bits of exp
    # depend on the machine, but a draw would have to fall between them to show it.
    reached = (total / total[..., -1:])[..., None, :] <= drawn[..., None]
    return reached.sum(axis=-1).astype(np.float32)
