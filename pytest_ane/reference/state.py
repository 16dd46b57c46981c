"""States: tensors that outlive a prediction, such as a key-value cache."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import TensorType
from pytest_ane.reference.dtypes import Precision, carried, settle


class State:
    """One state, zero at first.

    Raises:
        ExecutionError: the state's shape is open.
    """

    def __init__(self, kind: TensorType, precision: Precision = "as-typed") -> None:
        if any(d is None for d in kind.shape):
            raise ExecutionError(f"a state of the open shape {kind} cannot be made.")
        self.type = kind
        self._precision = precision
        self.write(np.zeros([int(d or 0) for d in kind.shape], carried(kind.dtype, precision)))

    def read(self) -> npt.NDArray[Any]:
        """The value; not to be written to."""
        return self._value

    def write(self, value: Any) -> None:
        """Another value of the same shape.

        Raises:
            ValueError: it has another shape.
        """
        self.take(settle(np.asarray(value), self.type.dtype, self._precision, moves=False))

    def take(self, value: Any) -> None:
        """Another value of the same shape, rounded already as the state's type says.

        Raises:
            ValueError: it has another shape.
        """
        array = np.asarray(value)
        if array.shape != self.type.shape:
            raise ValueError(f"a state {self.type} cannot take shape {list(array.shape)}")
        dtype = carried(self.type.dtype, self._precision)
        if array.flags.writeable or array.base is not None or array.dtype != dtype:
            # A copy that no one can write to: results may be views of it.
            array = np.array(array, dtype)
            array.flags.writeable = False
        self._value = array


class States(UserDict[str, State]):
    """The states of one model by name."""
