"""Share of finite values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def finite_fraction(x: npt.NDArray[Any]) -> float:
    """Share of values that are neither NaN nor infinite, 0 to 1; 0.0 for an empty array.

    An empty output holds no evidence, so it does not count as finite.
    """
    return float(np.isfinite(x).mean()) if x.size else 0.0
