"""Lists of tensors: every operation gives a new list, the elements are shared.

An element that was never written reads as zeros of the list's element shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.reference.registry import register

_DTYPES = {"bool": np.bool_, "fp16": np.float32, "fp32": np.float32, "int32": np.int32}


@dataclass(frozen=True, eq=False)
class TensorList:
    """A list's elements, `None` where nothing was written.

    Attributes:
        shape: of an element; a text stands for a dimension known when something is written.
        dynamic: it grows as needed.
    """

    elements: tuple[npt.NDArray[Any] | None, ...]
    shape: tuple[int | str, ...]
    dtype: Any
    dynamic: bool

    def at(self, index: int) -> npt.NDArray[Any]:
        """An element; zeros where nothing was written."""
        found = self.elements[self._checked(index)]
        return np.zeros(self._shape(), self.dtype) if found is None else found

    def written(self, indices: Any, values: Any) -> TensorList:
        """A list with other elements at these places; a dynamic one grows up to them."""
        places = [int(i) for i in np.atleast_1d(indices)]
        elements = list(self.elements)
        if self.dynamic and places:
            elements += [None] * (max(places) + 1 - len(elements))
        for place, value in zip(places, values, strict=True):
            if not 0 <= place < len(elements):
                raise IndexError(f"index {place} into a list of {len(elements)} elements")
            elements[place] = np.asarray(value)
        return TensorList(tuple(elements), self.shape, self.dtype, self.dynamic)

    def _checked(self, index: int) -> int:
        if not -len(self.elements) <= index < len(self.elements):
            raise IndexError(f"index {index} into a list of {len(self.elements)} elements")
        return index

    def _shape(self) -> tuple[int, ...]:
        known = [e.shape for e in self.elements if e is not None]
        if known:
            return known[0]
        return tuple(0 if isinstance(d, str) else d for d in self.shape)


@register("make_list")
def make_list(
    elem_shape: tuple[Any, ...],
    init_length: int = 1,
    dynamic_length: bool = True,
    dtype: str = "fp32",
) -> TensorList:
    """A list of `init_length` elements of one shape."""
    shape = tuple(d if isinstance(d, str) else int(d) for d in elem_shape)
    return TensorList((None,) * int(init_length), shape, _DTYPES[dtype], bool(dynamic_length))


@register("list_length")
def list_length(ls: TensorList) -> Any:
    """The number of elements."""
    return np.int32(len(ls.elements))


@register("list_read", moves=True)
def list_read(ls: TensorList, index: Any) -> Any:
    """The element at an index."""
    return ls.at(int(index))


@register("list_write", moves=True)
def list_write(ls: TensorList, index: Any, value: Any) -> TensorList:
    """The list with another element at an index."""
    return ls.written(int(index), [value])


@register("list_gather", moves=True)
def list_gather(ls: TensorList, indices: Any) -> Any:
    """The elements at these indices, stacked along a new first axis."""
    return np.stack([ls.at(int(i)) for i in np.atleast_1d(indices)])


@register("list_scatter", moves=True)
def list_scatter(ls: TensorList, indices: Any, value: Any) -> TensorList:
    """The list with `value[i]` at `indices[i]`."""
    return ls.written(indices, value)
