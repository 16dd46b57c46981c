"""Which rows are zero, as far as fp16 and float32 can tell."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

RESOLUTION = 2.0**-24
"""fp16's smallest number (IEEE 754-2019, table 3.5), and float32's unit roundoff: of an input of
magnitude 1 neither side can say anything smaller."""
_FP16_MAX = 65_504.0


class Zeros(NamedTuple):
    """Masks `[T]` of rows that are zero on both sides and on one side only; all others are live."""

    both: npt.NDArray[np.bool_]
    one: npt.NDArray[np.bool_]

    @property
    def live(self) -> npt.NDArray[np.bool_]:
        """Rows that have a direction on both sides."""
        return ~(self.both | self.one)


def zeros(a: npt.NDArray[Any], b: npt.NDArray[Any], input_max: float) -> Zeros:
    """Which rows of two `[T, C]` arrays are (near) zero.

    Near zero is a row whose largest magnitude is at most 2^-24 max(1, input_max): an expert's
    weight of 1e-9 is a number in float32 and zero in fp16, and terms as large as the input that
    cancel leave so much behind in float32. A row is zero on one side only if the other side's is
    above twice that, so that no row stands on the edge. NaN is never zero.
    """
    near = RESOLUTION * (max(1.0, min(input_max, _FP16_MAX)) if np.isfinite(input_max) else 1.0)
    x, y = (np.abs(side).max(axis=1, initial=0.0) for side in (a, b))
    some = (x <= near) | (y <= near)
    both = some & (x <= 2 * near) & (y <= 2 * near)
    return Zeros(both, some & ~both)
