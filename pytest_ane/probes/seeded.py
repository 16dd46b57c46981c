"""Probes: seeded random inputs, and such that are shaped by the states of golden prompts.

`gaussian` has RMS 1 in every channel. A block's contribution does not depend on the input's scale
(RMSNorm), but the residual stream does: at RMS 1 the ratio of the two is arbitrary, and no channel
sticks out. `outlier` has the means, deviations and largest values of the states that really enter
the shard, hence the real weight of the residual stream and its massive channels. `extreme` tests
only what a probe's size could break: that a shard stays finite and follows its reference.

Values have the same bits on every machine and with every numpy. numpy keeps the raw words of PCG64
for good, but not what its distributions make of them. So words become uniforms and normal values
here, with additions, products, quotients and square roots alone: IEEE 754 rounds them correctly,
one by one, where a logarithm differs between libraries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray

FP16_EDGE = fp16.MAX / 2
"""Largest magnitude of the second `extreme` probe: half of fp16's, so that a residual stream may
still double."""
_MASSIVE = 6.0
"""Deviations beyond which a channel's largest value is no part of its normal distribution."""
_BITS = 8
GENERATOR = 5
"""Version of the generator, raised when the same seed gives other probes; 1 was numpy's own."""
MASSIVE = (400, 4_000, 20_000)
"""Values of the channel that sticks out: their squares overflow fp16, they do not."""

# Wichura's PPND16, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied
# Statistics 37 (1988) 477-484: numerators and denominators of three rational approximations.
_CENTRE = (
    (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
     45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
    (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
     21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
)  # fmt: skip
_MIDDLE = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
     3.64784832476320460504, 1.27045825245236838258, 0.241780725177450611770,
     0.0227238449892691845833, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
     0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
     0.296560571828504891230, 0.0265321895265761230930, 0.00124266094738807843860,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip
_LN2 = 0.6931471805599453
_SERIES = tuple(1.0 / (2 * k + 1) for k in range(12))


def gaussian(bits: np.random.PCG64, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal values scaled to a root mean square of exactly 1 over the whole array."""
    x = normals(bits, shape)
    return single(x / math.sqrt(_squares(x) / x.size))


def unit_norm(bits: np.random.PCG64, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal rows of Euclidean norm 1 along the last axis.

    Their mean square is 1/C: at wide models the square underflows fp16 and RMSNorm's epsilon
    dominates. Kept because published residency notes probed this way.
    """
    x = normals(bits, shape)
    rows = x.reshape(-1, shape[-1])
    norms = np.sqrt([_squares(row) for row in rows]).reshape(*shape[:-1], 1)
    return single(x / norms)


KINDS = {"gaussian": gaussian, "unit-norm": unit_norm}
"""Kinds that need nothing but a seed."""


@dataclass(frozen=True, eq=False)
class Captured:
    """Statistics by channel, float64 `[C]`, of all golden prompts' states that enter a shard.

    Attributes:
        mean, std: without the first position of each prompt, an attention sink.
        peak: the value of largest magnitude, first positions included.
    """

    mean: DoubleArray
    std: DoubleArray
    peak: DoubleArray

    @classmethod
    def from_states(cls, states: Sequence[FloatArray]) -> Captured:
        """Statistics of prompts' hidden states, float32 `[T, C]` each.

        Rounded to 8 bits: what another machine's float32 adds up differently seldom shows.
        """
        every = np.concatenate(states).astype(np.float64)
        later = [state[1:] for state in states if len(state) > 1]
        body = np.concatenate(later).astype(np.float64) if later else every
        peak = every[np.abs(every).argmax(axis=0), np.arange(every.shape[1])]
        mantissa, exponent = np.frexp([body.mean(axis=0), body.std(axis=0), peak])
        return cls(*np.ldexp(np.rint(mantissa * 2.0**_BITS), exponent - _BITS))


def outlier(bits: np.random.PCG64, shape: tuple[int, int], captured: Captured) -> FloatArray:
    """Normal values of each channel's own mean and deviation; the first position has the peaks.

    A channel whose peak lies beyond 6 deviations has it there, as the first token of a text has
    its massive activations (Sun et al., arXiv 2402.17762).
    """
    x = captured.mean + captured.std * normals(bits, shape)
    massive = np.abs(captured.peak - captured.mean) > _MASSIVE * captured.std
    x[0] = np.where(massive, captured.peak, x[0])
    return single(x)


def extreme(bits: np.random.PCG64, shape: tuple[int, int], largest: float) -> FloatArray:
    """Normal values scaled so that the largest magnitude is the one given."""
    x = normals(bits, shape)
    return single(x * (largest / np.abs(x).max()))


def massive(
    bits: np.random.PCG64, shape: tuple[int, int], size: float
) -> tuple[FloatArray, tuple[int, ...]]:
    """Gaussian values of which each position has one channel at the given size; and the channels.

    They are in the first half: of two streams that enter side by side the residual one comes first.
    """
    x = gaussian(bits, shape)
    channels = [int(bits.random_raw()) % max(1, shape[1] // 2) for _ in range(shape[0])]
    x[range(shape[0]), channels] = size
    return x, tuple(sorted({*channels}))


def segmented(bits: np.random.PCG64, shape: tuple[int, int]) -> FloatArray:
    """Normal rows, each quarter about a vector of its own as large as they are; RMS 1 as a whole.

    Attention over many keys averages independent rows to almost nothing. Here it comes to the mean
    of those vectors, which depends on which keys are seen.
    """
    x = normals(bits, shape)
    for rows, centre in zip(np.array_split(x, 4), normals(bits, (4, shape[1])), strict=True):
        rows += centre
    return single(x / math.sqrt(_squares(x) / x.size))


def lengths(largest: int, seed: int) -> tuple[int, ...]:
    """T = 1, 2 and 4, one above powers of two, the largest, and two others that the seed draws.

    Those above the two greatest powers of two make room for what is drawn.
    """
    fixed = {1, 2, 4, *[*above_powers(4, largest)][:-2]}
    every = {length for length in fixed if length < largest} | {largest}
    others = [length for length in range(1, largest) if length not in every]
    return tuple(sorted({*every, *pick(seed, "lengths", others)}))


def pick(seed: int, what: str, choices: Sequence[int]) -> tuple[int, ...]:
    """Two of the choices in order; seeds that follow one another meet each of them."""
    order = np.argsort(generator("drawn", what).random_raw(len(choices)), kind="stable").tolist()
    picked = (order[(2 * seed + i) % len(order)] for i in range(2 if order else 0))
    return tuple(sorted({choices[i] for i in picked}))


def above_powers(power: int, largest: int) -> Iterator[int]:
    """2^k + 1 below `largest`, from the given power of two on: nothing divides its work evenly."""
    while power + 1 < largest:
        yield power + 1
        power *= 2


def seeded(
    kinds: Sequence[str],
    *,
    count: int,
    seed: int,
    length: int,
    width: int,
    edge: float = FP16_EDGE,
    captured: Callable[[], Captured] | None = None,
) -> Iterator[tuple[str, str, FloatArray]]:
    """`(kind, name, hidden [T, C])` of each drawn kind and number at T = `length`.

    Of `extreme` there are two whatever the count: as large as the largest captured state, and at
    the edge of fp16 as it enters. `captured` is called for `outlier` and `extreme` only.
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
            for name, largest in (("captured maximum", peak), ("fp16 edge", edge)):
                bits = generator(seed, kind, length, width, name)
                yield kind, f"{label} {name}", extreme(bits, shape, largest)


def generator(*parts: object) -> np.random.PCG64:
    """Random words seeded by SHA-256 of the parts, so that streams never overlap."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return np.random.PCG64(int.from_bytes(digest[:16], "little"))


def words(bits: np.random.PCG64, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """The next raw 64-bit words."""
    return np.asarray(bits.random_raw(math.prod(shape)), np.uint64).reshape(shape)


def normals(bits: np.random.PCG64, shape: tuple[int, ...]) -> DoubleArray:
    """Standard normal values, one of each 64-bit word."""
    # 52 bits and a half are exact, and never 0 or 1.
    return quantile(((words(bits, shape) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def quantile(p: DoubleArray) -> DoubleArray:
    """The inverse of the standard normal distribution at 0 < p < 1, to about 1e-15 (AS 241)."""
    q = p - 0.5
    values = q * _rational(_CENTRE, 0.180625 - q * q)
    out = np.abs(q) > 0.425
    tail = np.where(q < 0, p, 1.0 - p)[out]
    r = np.sqrt(-_logarithm(tail))
    far = np.where(r <= 5.0, _rational(_MIDDLE, r - 1.6), _rational(_FAR, r - 5.0))
    values[out] = np.where(q[out] < 0, -far, far)
    return values


def single(x: DoubleArray) -> FloatArray:
    """In float32."""
    return x.astype(np.float32)


def _squares(x: DoubleArray) -> float:
    """The sum of squares, rounded once: numpy's own order of additions is not for good."""
    return math.fsum((x * x).ravel().tolist())


def _logarithm(x: DoubleArray) -> DoubleArray:
    """Natural logarithm of positive values: 2 artanh((m - 1) / (m + 1)) + e ln 2 for x = m 2^e."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.5**0.5
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    logarithm: DoubleArray = 2.0 * s * _polynomial(_SERIES, s * s) + exponent * _LN2
    return logarithm


def _rational(coefficients: tuple[Sequence[float], Sequence[float]], x: DoubleArray) -> DoubleArray:
    above, below = coefficients
    return _polynomial(above, x) / _polynomial(below, x)


def _polynomial(coefficients: Sequence[float], x: DoubleArray) -> DoubleArray:
    """By Horner's rule; numpy rounds after each product and sum, as no fused operation would."""
    value = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value
