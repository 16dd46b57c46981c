"""Normal random numbers that have the same bits on every machine and with every numpy.

numpy keeps the raw words of PCG64 for good, but not what its distributions make of them. So words
become uniforms and these normal values here, with additions, products, quotients and square roots
alone: IEEE 754 rounds them correctly, one by one, where a logarithm differs between libraries.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Doubles: TypeAlias = "npt.NDArray[np.float64]"

GENERATOR = 2
"""Raised whenever the same seed gives other probes; 1 were numpy's own normal values."""

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


def generator(*parts: object) -> np.random.PCG64:
    """Random words seeded by SHA-256 of the parts, so that streams never overlap."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return np.random.PCG64(int.from_bytes(digest[:16], "little"))


def normals(bits: np.random.PCG64, shape: tuple[int, ...]) -> Doubles:
    """Standard normal values, one of each 64-bit word."""
    words: npt.NDArray[np.uint64] = bits.random_raw(math.prod(shape)).reshape(shape)
    # 52 bits and a half are exact, and never 0 or 1.
    return quantile(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def quantile(p: Doubles) -> Doubles:
    """The inverse of the standard normal distribution at 0 < p < 1, to about 1e-15 (AS 241)."""
    q = p - 0.5
    found = q * _rational(_CENTRE, 0.180625 - q * q)
    out = np.abs(q) > 0.425
    tail = np.where(q < 0, p, 1.0 - p)[out]
    r = np.sqrt(-_logarithm(tail))
    far = np.where(r <= 5.0, _rational(_MIDDLE, r - 1.6), _rational(_FAR, r - 5.0))
    found[out] = np.where(q[out] < 0, -far, far)
    return found


def _logarithm(x: Doubles) -> Doubles:
    """Natural logarithm of positive values: 2 artanh((m - 1) / (m + 1)) + e ln 2 for x = m 2^e."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.5**0.5
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    found: Doubles = 2.0 * s * _polynomial(_SERIES, s * s) + exponent * _LN2
    return found


def _rational(coefficients: tuple[Sequence[float], Sequence[float]], x: Doubles) -> Doubles:
    above, below = coefficients
    return _polynomial(above, x) / _polynomial(below, x)


def _polynomial(coefficients: Sequence[float], x: Doubles) -> Doubles:
    """By Horner's rule; numpy rounds after each product and sum, as no fused operation would."""
    found = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found = found * x + coefficient
    return found
