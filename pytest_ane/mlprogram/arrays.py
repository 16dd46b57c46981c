"""Types of numpy arrays that every package shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Any dtype."""
Arrays: TypeAlias = Mapping[str, Array]
"""By name: a call's inputs, outputs, or a file's tensors."""
HalfArray: TypeAlias = npt.NDArray[np.float16]
FloatArray: TypeAlias = npt.NDArray[np.float32]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
