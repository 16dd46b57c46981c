"""States: tensors that outlive a prediction, such as a key-value cache."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.dtypes import Precision, carried, convert
from pytest_ane.mlprogram.records import TensorType


class State:
    """A tensor that `read_state` and `write_state` refer to, zero at first.

    Args:
        kind: its type.
        precision: the session's.

    Raises:
        ExecutionError: the state's shape is open.
    """

    def __init__(self, kind: TensorType, precision: Precision = "as-typed") -> None:
        if any(d is None for d in kind.shape):
            raise ExecutionError(f"a state of the open shape {kind} cannot be made.")
        self.type = kind
        self._precision = precision
        self.write(np.zeros([int(d or 0) for d in kind.shape], carried(kind.dtype, precision)))

    def read(self) -> Array:
        """The value, an array that cannot be written to."""
        return self._value

    def write(self, value: Any) -> None:
        """Replace the value by one of the same shape.

        Raises:
            ValueError: it has another shape.
        """
        with np.errstate(all="ignore"):
            self.take(convert(value, self.type.dtype, self._precision))

    def take(self, value: Any) -> None:
        """As `write`, of a value that is rounded already as the state's type says."""
        if np.shape(value) != self.type.shape:
            raise ValueError(f"a state {self.type} cannot take shape {list(np.shape(value))}")
        # A copy that no one can write to: results may be views of it.
        self._value = np.array(value, carried(self.type.dtype, self._precision))
        self._value.flags.writeable = False


class States(UserDict[str, State]):
    """The states of one model by name."""
