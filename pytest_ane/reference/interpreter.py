"""A compiled interpreter of arithmetic on few numbers, which numpy takes longer to call than to do.

A program is a table of instructions on one buffer of float32 numbers, into which every one writes
`n` numbers from `out` on; what they read is written before. Bit for bit they give what numpy does.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import register_jitable

from pytest_ane.reference.kernels import compiled, round_number


class Kind(IntEnum):
    """What an instruction does with the numbers from `a` and from `b` on."""

    GATHER = 0
    """Numbers from anywhere: their places stand in the index from `a` on."""
    ADD = 1
    SUB = 2
    MUL = 3
    DIV = 4
    MAX = 5
    MIN = 6
    ABS = 7
    SQRT = 8
    SUM = 9
    """One number, the sum of `b` numbers, 128 at most: a leaf of numpy's sums by halves."""
    ROW_MAX = 10
    """One number, the largest of `b`; so the next one."""
    ROW_MIN = 11


(_GATHER, _ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _ABS, _SQRT, _SUM, _ROW_MAX, _ROW_MIN) = map(
    int, Kind
)
LEAF = 128
"""Most numbers of a `SUM`: numpy sums twice as many by halves."""
_CODE = types.Array(types.int64, 2, "C", readonly=True)
_INDEX = types.Array(types.int64, 1, "C", readonly=True)


@register_jitable
def _leaf(x: Any) -> Any:
    """As numpy's `pairwise_sum` (loops_utils.h.src): eight sums side by side, then the rest."""
    total = np.float32(0)
    rest = 0
    if len(x) >= 8:
        rest = len(x) - len(x) % 8
        a, b, c, d, e, f, g, h = x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]
        for j in range(8, rest, 8):
            a += x[j]
            b += x[j + 1]
            c += x[j + 2]
            d += x[j + 3]
            e += x[j + 4]
            f += x[j + 5]
            g += x[j + 6]
            h += x[j + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for j in range(rest, len(x)):
        total += x[j]
    return total


@compiled(_CODE, _INDEX, types.float32[::1], error_model="numpy")
def run(code: Any, index: Any, buffer: Any) -> None:
    """Run instructions `[kind, out, n, a, b, rounds]` on a buffer.

    `rounds` says whether the results are rounded to fp16. Of NaN and a number extremes are NaN.
    """
    for i in range(len(code)):
        kind, out, n, a, b = code[i, 0], code[i, 1], code[i, 2], code[i, 3], code[i, 4]
        y = buffer[out : out + n]
        if kind == _GATHER:
            for j in range(n):
                y[j] = buffer[index[a + j]]
        elif kind == _ADD:
            for j in range(n):
                y[j] = buffer[a + j] + buffer[b + j]
        elif kind == _SUB:
            for j in range(n):
                y[j] = buffer[a + j] - buffer[b + j]
        elif kind == _MUL:
            for j in range(n):
                y[j] = buffer[a + j] * buffer[b + j]
        elif kind == _DIV:
            for j in range(n):
                y[j] = buffer[a + j] / buffer[b + j]
        elif kind == _MAX:
            for j in range(n):
                x, z = buffer[a + j], buffer[b + j]
                y[j] = x if x >= z or x != x else z
        elif kind == _MIN:
            for j in range(n):
                x, z = buffer[a + j], buffer[b + j]
                y[j] = x if x <= z or x != x else z
        elif kind == _ABS:
            for j in range(n):
                y[j] = abs(buffer[a + j])
        elif kind == _SQRT:
            for j in range(n):
                y[j] = np.sqrt(buffer[a + j])
        elif kind == _SUM:
            y[0] = _leaf(buffer[a : a + b])
        elif kind == _ROW_MAX:
            y[0] = buffer[a]
            for j in range(1, b):
                x = buffer[a + j]
                y[0] = x if x > y[0] or x != x else y[0]
        elif kind == _ROW_MIN:
            y[0] = buffer[a]
            for j in range(1, b):
                x = buffer[a + j]
                y[0] = x if x < y[0] or x != x else y[0]
        if code[i, 5]:
            for j in range(n):
                y[j] = round_number(y[j])
