"""Lists of tensors, and states (iOS 18), which outlive a prediction, such as a key-value cache.

Every operation on a list gives a new list, and shares the elements. One that was never written
reads as zeros of the list's element shape. States are read and written by reference.
"""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._registry import register, register_all
from pytest_ane.mlprogram.executor.dtypes import Precision, carried, convert
from pytest_ane.mlprogram.executor.ops.spatial import integers
from pytest_ane.mlprogram.records import TensorType


class State:
    """A tensor of a type that `read_state` and `write_state` refer to, zero at first."""

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
        """Replace the value by one of the same shape."""
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


_DTYPES = {"bool": np.bool_, "fp16": np.float32, "fp32": np.float32, "int32": np.int32}


@dataclass(frozen=True, eq=False)
class TensorList:
    """A list's elements, `None` where nothing was written; a `dynamic` one grows as needed.

    In an element's shape a text stands for a dimension that the first write decides.
    """

    elements: tuple[Array | None, ...]
    shape: tuple[int | str, ...]
    dtype: Any
    dynamic: bool

    def at(self, index: int) -> Array:
        """An element; zeros where nothing was written."""
        if not -len(self.elements) <= index < len(self.elements):
            raise IndexError(f"index {index} into a list of {len(self.elements)} elements")
        element = self.elements[index]
        return np.zeros(self.element_shape, self.dtype) if element is None else element

    def written(self, indices: Any, values: Any) -> TensorList:
        """The list with these values at these indices; a dynamic one grows to hold them."""
        places = integers(indices)
        elements = list(self.elements)
        if self.dynamic and places:
            elements += [None] * (max(places) + 1 - len(elements))
        for place, value in zip(places, values, strict=True):
            if not 0 <= place < len(elements):
                raise IndexError(f"index {place} into a list of {len(elements)} elements")
            elements[place] = np.asarray(value)
        return TensorList(tuple(elements), self.shape, self.dtype, self.dynamic)

    @property
    def element_shape(self) -> tuple[int, ...]:
        """Shape of the tensor at an index: that of one that was written, else as declared."""
        declared = tuple(0 if isinstance(d, str) else d for d in self.shape)
        return next((e.shape for e in self.elements if e is not None), declared)


@register("make_list")
def make_list(
    elem_shape: tuple[Any, ...], init_length: int = 1, dynamic_length: bool = True,
    dtype: str = "fp32",
) -> TensorList:  # fmt: skip
    """A list of `init_length` elements of one shape."""
    shape = tuple(d if isinstance(d, str) else int(d) for d in elem_shape)
    return TensorList((None,) * int(init_length), shape, _DTYPES[dtype], bool(dynamic_length))


# A negative index counts from the end.
_MOVES: dict[str, Any] = {
    "list_read": lambda ls, index: ls.at(int(index)),
    "list_write": lambda ls, index, value: ls.written(int(index), [value]),
    "list_gather": lambda ls, indices: np.stack([ls.at(i) for i in integers(indices)]),
    "list_scatter": lambda ls, indices, value: ls.written(indices, value),
}
register_all({**_MOVES, "list_length": lambda ls: np.int32(len(ls.elements))}, _MOVES)


@register("read_state", opset="iOS18", moves=True)
def read_state(input: State) -> Any:
    """The state's present value, read-only: a later write replaces it and leaves it alone."""
    return input.read()


@register("write_state", opset="iOS18", moves=True)
def write_state(input: State, data: Any) -> tuple[()]:
    """Replace the state's value; the operation has no result."""
    input.take(data)
    return ()
