"""Random tensors that are the same on every machine and in every run.

Bits come from the counter-based generator Philox keyed by the seed, which numpy keeps stable, and
floats from them by arithmetic that IEEE 754 defines to the last bit. Core ML's own generator is not
documented, so only distributions can agree with a device's, not numbers. Without a seed, as with
seed -1, `DEFAULT_SEED` is used. Operations with one seed, and runs of one session, give the same
numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.ops.filling import dimensions
from pytest_ane.mlprogram.executor.registry import register

DEFAULT_SEED = 1729
_LN2 = 0.6931471805599453


def _uniform(seed: int | None) -> Any:
    """A function that gives the seed's next float64 numbers of [0, 1)."""
    key = DEFAULT_SEED if seed is None or int(seed) == -1 else int(seed) % 2**32
    bits = np.random.Philox(key=key)

    def draw(count: int) -> Any:
        return (bits.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    return draw


def _log(x: Any) -> Any:
    """Natural logarithms of positive numbers by operations that round alike on every machine.

    With x = m 2^e and m in [1/2, 1), ln x = e ln 2 + 2 artanh((m - 1) / (m + 1)); the series of
    artanh is cut off below 2^-53.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < np.sqrt(0.5)
    mantissa, exponent = np.where(low, mantissa * 2, mantissa), exponent - low
    z = (mantissa - 1) / (mantissa + 1)
    series = np.zeros_like(z)
    for power in range(23, 0, -2):
        series = series * z * z + 1 / power
    return exponent * _LN2 + 2 * z * series


def _normal(seed: int | None, count: int) -> Any:
    """Standard normal numbers by Marsaglia's polar method (SIAM Review 6, 1964)."""
    draw = _uniform(seed)
    numbers = np.empty(0)
    while numbers.size < count:
        # pi / 4 of the points fall into the unit circle, and each of them gives two numbers.
        pairs = 2 * draw(2 * (count - numbers.size) + 16).reshape(-1, 2) - 1
        square = pairs[:, 0] * pairs[:, 0] + pairs[:, 1] * pairs[:, 1]
        inside = (square > 0) & (square < 1)
        pairs, square = pairs[inside], square[inside, None]
        scale = np.sqrt(-2 * _log(square) / square)
        numbers = np.concatenate([numbers, (pairs * scale).reshape(-1)])
    return numbers[:count]


@register("random_uniform")
def random_uniform(shape: Any, low: float = 0.0, high: float = 1.0, seed: int | None = -1) -> Any:
    """Numbers uniform in [low, high); `low` where both are equal.

    Raises:
        ValueError: a dimension is negative, or high is below low.
    """
    if high < low:
        raise ValueError(f"high {high} is below low {low}")
    size = dimensions(shape)
    numbers = low + (high - low) * _uniform(seed)(math.prod(size)).reshape(size)
    # Rounding to float32 must not reach the end that is excluded.
    most = np.maximum(np.nextafter(np.float32(high), np.float32(-np.inf)), np.float32(low))
    return np.minimum(numbers.astype(np.float32), most)


@register("random_normal")
def random_normal(shape: Any, mean: float = 0.0, stddev: float = 1.0, seed: int | None = -1) -> Any:
    """Normally distributed numbers.

    Raises:
        ValueError: a dimension or stddev is negative.
    """
    if stddev < 0:
        raise ValueError(f"stddev {stddev} is negative")
    size = dimensions(shape)
    return (mean + stddev * _normal(seed, math.prod(size)).reshape(size)).astype(np.float32)


@register("random_bernoulli")
def random_bernoulli(shape: Any, prob: float = 0.5, seed: int | None = -1) -> Any:
    """1 with probability `prob`, else 0.

    Raises:
        ValueError: a dimension is negative, or prob is not a probability.
    """
    if not 0 <= prob <= 1:
        raise ValueError(f"prob {prob} is not from 0 to 1")
    size = dimensions(shape)
    return (_uniform(seed)(math.prod(size)) < prob).reshape(size).astype(np.float32)


@register("random_categorical")
def random_categorical(x: Any, mode: str = "logits", size: int = 1, seed: int | None = -1) -> Any:
    """Indices drawn, with replacement, from the distributions along the last axis.

    Args:
        x: (..., classes), logits or probabilities that need not add up to 1.
        mode: `logits` or `probs`.
        size: how many to draw from each.
        seed: as for all random operations.

    Returns:
        (..., size) indices as floats.

    Raises:
        ValueError: the mode is unknown, or x gives no distribution.
    """
    if mode not in ("logits", "probs"):
        raise ValueError(f"mode is {mode!r}, not 'logits' or 'probs'")
    x = np.asarray(x, np.float64)
    weights = np.exp(x - x.max(axis=-1, keepdims=True)) if mode == "logits" else x
    total = np.cumsum(weights, axis=-1)
    if not (np.all(weights >= 0) and np.all(total[..., -1] > 0) and np.isfinite(total).all()):
        raise ValueError(f"{mode} give no distribution: NaN, infinite, negative, or all zero")
    shape = (*x.shape[:-1], int(size))
    drawn = _uniform(seed)(math.prod(shape)).reshape(shape)
    # Cumulated probabilities end in exactly 1, which no drawn number reaches. The last bits of exp
    # depend on the machine, but a draw would have to fall between them to show it.
    reached = (total / total[..., -1:])[..., None, :] <= drawn[..., None]
    return reached.sum(axis=-1).astype(np.float32)
