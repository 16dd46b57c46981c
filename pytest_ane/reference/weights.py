"""Weights that stay as they are stored and are decoded rows at a time, in every run anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mil.blob import load
from pytest_ane.mil.records import Blob, DType, MLModel, Operation, TensorType, Value
from pytest_ane.reference.palettes import decode, stored

Array = npt.NDArray[Any]
_AT_ONCE = 1 << 20
"""Elements decoded at a time: their 4 MB stay in the cache until they are multiplied."""
SMALLEST = 1 << 16
"""Bytes from which a weight is worth streaming."""


@dataclass(frozen=True, eq=False)
class StreamedWeight:
    """A weight `[O, ...]` that is never held decoded as a whole.

    Attributes:
        rows: `rows(start, stop, out)` decodes rows `[start, stop)` into `out [stop - start, ...]`.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Callable[[int, int, Array], Array]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def product(self, columns: Array) -> Array:
        """`weight columns`: `[O, K]` and `[N, K, P]` give `[N, O, P]`, block by block of rows."""
        height, width = self.shape[0], math.prod(self.shape[1:])
        step = max(1, min(height, _AT_ONCE // max(width, 1)))
        buffer = np.empty((step, *self.shape[1:]), self.dtype)
        found = np.empty((len(columns), height, columns.shape[2]), self.dtype)
        for start in range(0, height, step):
            stop = min(start + step, height)
            block = self.rows(start, stop, buffer[: stop - start]).reshape(stop - start, width)
            np.matmul(block, columns, out=found[:, start:stop])
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        dense = self.rows(0, self.shape[0], np.empty(self.shape, self.dtype))
        return dense if dtype is None else dense.astype(dtype)


def palettized(
    model: MLModel, indices: Value | None, tables: Any, dtype: Any
) -> StreamedWeight | None:
    """A weight of `constexpr_lut_to_dense`; None unless tables `[G, 1, ..., 2^n, 1]` serve rows.

    `dtype` is what is computed with: float32 or float64.
    """
    kept = None if indices is None else stored(model, indices)
    if kept is None:
        return None
    shape, entries = kept.shape, 1 << kept.bits
    by_rows = tables.ndim == len(shape) + 2 and all(n == 1 for n in tables.shape[1:-2])
    if not by_rows or tables.shape[-2:] != (entries, 1) or shape[0] % tables.shape[0]:
        return None
    flat = tables.reshape(-1, entries).astype(dtype, copy=False)

    def rows(start: int, stop: int, out: Array) -> Array:
        return decode(kept, flat, start=start, stop=stop, dtype=dtype, out=out)

    return StreamedWeight(shape, dtype, rows)


def plain(model: MLModel, value: Value, dtype: Any) -> StreamedWeight | None:
    """A floating-point weight in its file; None for any other constant."""
    kind = value.type
    if not isinstance(value.data, Blob) or not isinstance(kind, TensorType) or not kind.shape:
        return None
    if kind.dtype not in (DType.FP16, DType.FP32):
        return None
    mapped = load(model, value)

    def rows(start: int, stop: int, out: Array) -> Array:
        np.copyto(out, mapped[start:stop])
        return out

    return StreamedWeight(mapped.shape, dtype, rows)


def decoded_bytes(op: Operation, dtype: Any) -> int:
    """Bytes a floating-point weight takes once decoded; 0 for anything else."""
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype not in (DType.FP16, DType.FP32):
        return 0
    return int(math.prod(d or 0 for d in kind.shape)) * int(np.dtype(dtype).itemsize)
