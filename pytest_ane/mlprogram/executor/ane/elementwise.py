"""Element-wise arithmetic: exact results of decoded operands, rounded once.

Grade: recorded. Source: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6,
data/06_numerics/numerics3_m6.txt (57 outputs on M6), sbryngelson/ANEForge (7 additions on M5).
The range is fp16's own, 65504; subnormals stay. Maximum, minimum, select and relu are exact as
they are (inferred), and so are absolute values, signs and squares, which the hardware computes
without a table (751K); a division is unknown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.executor.ane.fp16 import (
    decode,
    decoded_number,
    r16,
    rounded_number,
    ufunc,
)
from pytest_ane.mlprogram.executor.ane.grades import Grade, rule

_BINARY = "float32(float32, float32)"


# float64 holds sums and products of two decoded numbers exactly.
@ufunc(_BINARY)
def _add(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) + np.float64(decoded_number(y)))


@ufunc(_BINARY)
def _sub(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) - np.float64(decoded_number(y)))


@ufunc(_BINARY)
def _mul(x: Any, y: Any) -> Any:
    return rounded_number(np.float64(decoded_number(x)) * np.float64(decoded_number(y)))


@rule(Grade.RECORDED, "add")
def add(x: Any, y: Any) -> FloatArray:
    """`r16(x + y)`: 2048 + 1 is 2050, and 65536 - 65536, an infinity less itself, is 0."""
    return np.asarray(_add(x, y))


@rule(Grade.RECORDED, "sub")
def sub(x: Any, y: Any) -> FloatArray:
    """`r16(x - y)`."""
    return np.asarray(_sub(x, y))


@rule(Grade.RECORDED, "mul")
def mul(x: Any, y: Any) -> FloatArray:
    """`r16(x y)`; 0 times infinity is 0."""
    return np.asarray(_mul(x, y))


@rule(Grade.INFERRED, "abs")
def absolute(x: Any) -> FloatArray:
    """`|x|`."""
    return r16(np.abs(decode(x)))


@rule(Grade.INFERRED, "sign")
def sign(x: Any) -> FloatArray:
    """-1, 0 or 1."""
    return r16(np.sign(decode(x)))


@rule(Grade.INFERRED, "square")
def square(x: Any) -> FloatArray:
    """`r16(x x)`."""
    return mul(x, x)


@rule(Grade.INFERRED, "maximum")
def maximum(x: Any, y: Any) -> FloatArray:
    """The larger number; an infinity is 65536, and stays one."""
    return r16(np.maximum(decode(x), decode(y)))


@rule(Grade.INFERRED, "minimum")
def minimum(x: Any, y: Any) -> FloatArray:
    """The smaller number."""
    return r16(np.minimum(decode(x), decode(y)))
