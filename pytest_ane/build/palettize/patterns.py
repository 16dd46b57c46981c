"""Compiled arithmetic on fp16 weights given as their bit patterns.

An fp16 weight has one of 65,536 patterns, so groups of weights are counted, and a table from
pattern to index palettizes a group in one pass. A `key` is a pattern's lower 15 bits, negative
where the number is; keys are in the order of the numbers.

numba keeps compiled code on disk (`__pycache__`, or where NUMBA_CACHE_DIR says) until the file
changes that a function is in. It does not look at functions called in other files: whoever changes
this one deletes the cache, or touches `kmeans.py` and `uniform.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])
Patterns = npt.NDArray[np.uint16]
Indices = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

INFINITE = 0x7C00
"""The pattern of fp16's infinity; those above it, the sign apart, are NaN."""
NEGATIVE = 0x8000
"""The sign bit."""
PATTERNS = 1 << 16
_STEPS = np.ldexp(1.0, np.maximum(np.arange(32), 1) - 25)
"""What the last bit of a fraction is worth, by exponent."""


def compiled(function: F) -> F:
    """Compile at the first call; kept on disk for later processes, where any folder takes it."""

    def decorated(cache: bool) -> Any:
        return numba.njit(nogil=True, cache=cache, error_model="numpy")(function)

    try:
        return cast(F, decorated(cache=True))
    # An installation that cannot be written, and no home folder: usual in containers.
    except RuntimeError:
        return cast(F, decorated(cache=False))


@compiled
def half(x: float) -> float:
    """The fp16 number nearest to `x`, ties to even, overflow aside."""
    _, exponent = math.frexp(x)
    step = math.ldexp(1.0, max(exponent - 1, -14) - 10)
    return float(np.rint(x / step)) * step


@compiled
def number(key: int) -> float:
    """The value of a finite pattern, negative where `key` is."""
    pattern = abs(key)
    exponent, fraction = pattern >> 10, pattern & 0x3FF
    size: float = (fraction + (1024 if exponent else 0)) * _STEPS[exponent]
    return -size if key < 0 else size


@compiled
def largest(group: Patterns) -> int:
    """The largest pattern, signs apart: `INFINITE` or more where a weight is no number."""
    most = np.uint16(0)
    for pattern in group:
        most = max(most, pattern & np.uint16(0x7FFF))
    return int(most)


@compiled
def look_up(group: Patterns, table: Indices, indices: Indices) -> None:
    """The index of every weight."""
    for i in range(len(group)):
        indices[i] = table[group[i]]


@compiled
def pack(indices: Indices, nbits: int, packed: Indices) -> None:
    """Indices as a stream of bits, lowest first; `packed` has one byte for every 8 bits begun."""
    if nbits == 4:  # By far the most common, and this loop becomes vector instructions.
        for i in range(len(indices) // 2):
            packed[i] = indices[2 * i] | indices[2 * i + 1] << 4
        if len(indices) % 2:
            packed[-1] = indices[-1]
        return
    word, filled, at = 0, 0, 0
    for index in indices:
        word |= index << filled
        filled += nbits
        if filled >= 8:
            packed[at] = word & 0xFF
            word >>= 8
            filled -= 8
            at += 1
    if filled:
        packed[at] = word
