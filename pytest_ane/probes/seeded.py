"""Probes: seeded random inputs, and such that are shaped by the states of golden prompts.

`gaussian` has RMS 1 in every channel. RMSNorm makes what a block adds independent of the size of
what enters, so at RMS 1 the residual stream weighs as much against it as chance has it, and no
channel sticks out. `outlier` has the means, deviations and largest values of the states that really
enter the shard, hence the real weight of the residual stream and its massive channels. `extreme`
asks of a shard only what its size could break: that it stays finite and follows its reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.probes.normal import Doubles, generator, normals

FP16_EDGE = 65504 / 2
"""Largest magnitude of the second `extreme` probe: half of fp16's, so that a residual stream may
still double."""
_MASSIVE = 6.0
"""Deviations beyond which a channel's largest value is no part of its normal distribution."""
_BITS = 8


def gaussian(bits: np.random.PCG64, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal values scaled to a root mean square of exactly 1 over the whole array."""
    x = normals(bits, shape)
    return _single(x / math.sqrt(_squares(x) / x.size))


def unit_norm(bits: np.random.PCG64, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal rows of Euclidean norm 1 along the last axis.

    Their mean square is 1/C: at wide models the square underflows fp16 and RMSNorm's epsilon
    dominates. Kept because published residency notes probed this way.
    """
    x = normals(bits, shape)
    rows = x.reshape(-1, shape[-1])
    norms = np.sqrt([_squares(row) for row in rows]).reshape(*shape[:-1], 1)
    return _single(x / norms)


KINDS = {"gaussian": gaussian, "unit-norm": unit_norm}
"""Kinds that need nothing but a seed."""


@dataclass(frozen=True, eq=False)
class Captured:
    """What is known by channel `[C]` of the states that enter a shard, over all golden prompts.

    Attributes:
        mean, std: without the first position of each prompt, which is unlike any other.
        peak: the value of largest magnitude, first positions included.
    """

    mean: Doubles
    std: Doubles
    peak: Doubles

    @classmethod
    def of(cls, states: Sequence[FloatArray]) -> Captured:
        """Of prompts' hidden states `[T, C]`.

        Rounded to 8 bits: what another machine's float32 adds up differently seldom shows.
        """
        every = np.concatenate(states).astype(np.float64)
        later = [state[1:] for state in states if len(state) > 1]
        body = np.concatenate(later).astype(np.float64) if later else every
        peak = every[np.abs(every).argmax(axis=0), np.arange(every.shape[1])]
        return cls(*map(_rounded, (body.mean(axis=0), body.std(axis=0), peak)))


def outlier(bits: np.random.PCG64, shape: tuple[int, int], captured: Captured) -> FloatArray:
    """Normal values of each channel's own mean and deviation; the first position has the peaks.

    A channel whose peak lies beyond 6 deviations has it there, as the first token of a text has
    its massive activations (Sun et al., arXiv 2402.17762).
    """
    x = captured.mean + captured.std * normals(bits, shape)
    massive = np.abs(captured.peak - captured.mean) > _MASSIVE * captured.std
    x[0] = np.where(massive, captured.peak, x[0])
    return _single(x)


def extreme(bits: np.random.PCG64, shape: tuple[int, int], largest: float) -> FloatArray:
    """Normal values scaled so that the largest magnitude is the one given."""
    x = normals(bits, shape)
    return _single(x * (largest / np.abs(x).max()))


def lengths(largest: int) -> tuple[int, ...]:
    """T = 1, one in the middle, and the largest; the middle of 64 is 33, which nothing divides."""
    return tuple(dict.fromkeys((1, largest // 2 + 1, largest)))


def seeded(
    kinds: Sequence[str],
    *,
    count: int,
    seed: int,
    length: int,
    width: int,
    captured: Callable[[], Captured] | None = None,
) -> Iterator[tuple[str, str, FloatArray]]:
    """`(kind, name, hidden [T, C])` of each drawn kind and number at T = `length`.

    Of `extreme` there are two whatever the count: as large as the largest captured state, and at
    the edge of fp16. `captured` is called for `outlier` and `extreme` only.
    """
    shape = (length, width)
    for kind in kinds:
        label = f"{kind} T={length}"
        for number in range(count if kind != "extreme" else 0):
            bits = generator(seed, kind, length, width, number)
            if kind in KINDS:
                yield kind, f"{label} #{number}", KINDS[kind](bits, shape)
            elif kind == "outlier" and captured is not None:
                yield kind, f"{label} #{number}", outlier(bits, shape, captured())
        if kind == "extreme" and captured is not None:
            peak = float(np.abs(captured().peak).max())
            for name, largest in (("captured maximum", peak), ("fp16 edge", FP16_EDGE)):
                bits = generator(seed, kind, length, width, name)
                yield kind, f"{label} {name}", extreme(bits, shape, largest)


def _single(x: Doubles) -> FloatArray:
    return x.astype(np.float32)


def _squares(x: Doubles) -> float:
    """The sum of squares, rounded once: numpy's own order of additions is not for good."""
    return math.fsum((x * x).ravel().tolist())


def _rounded(x: Doubles) -> Doubles:
    mantissa, exponent = np.frexp(x)
    rounded: Doubles = np.ldexp(np.rint(mantissa * 2.0**_BITS), exponent - _BITS)
    return rounded
