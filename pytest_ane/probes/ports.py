"""Arrays by port: which axis is the flexible one, and rows along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Port


def flexible_axis(port: Port) -> int | None:
    """The one flexible axis; None where there is none or several."""
    axes = [i for i, size in enumerate(port.shape) if size == "T"]
    return axes[0] if len(axes) == 1 else None


def port_rows(array: npt.NDArray[Any], port: Port | None) -> FloatArray:
    """`[T, C]` where one axis is known to be flexible, else one row."""
    axis = None if port is None else flexible_axis(port)
    if axis is None or port is None or array.ndim != len(port.shape):
        return np.asarray(array, dtype=np.float32).reshape(1, -1)
    moved = np.moveaxis(np.asarray(array, dtype=np.float32), axis, 0)
    return moved.reshape(len(moved), -1)
