"""Weights of matrix products, streamed from where they are stored or held in fp16."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array, HalfArray
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.executor.dtypes import load_kernels, widen
from pytest_ane.mlprogram.executor.palettes import decode, stored
from pytest_ane.mlprogram.records import Blob, DType, MLModel, Operation, TensorType, Value

LARGE = 1 << 16
"""Bytes from which a weight is worth streaming, or holding in fp16."""
_AT_ONCE = 1 << 20
"""Elements decoded at a time: their 4 MB stay in the cache until they are multiplied."""
_FEW = 8
"""Columns up to which the compiled product beats widening the weight for BLAS."""


@dataclass(frozen=True, eq=False)
class StreamedWeight:
    """A weight `[O, ...]` that is never held decoded as a whole; `np.asarray` decodes it.

    Attributes:
        rows: `rows(start, stop, out)` decodes rows `[start, stop)` into `out [stop - start, ...]`.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Callable[[int, int, Array], Array]

    @property
    def ndim(self) -> int:
        """Number of axes, those of a kernel included."""
        return len(self.shape)

    def product(self, columns: Array) -> Array:
        """`weight columns`: `[O, K]` and `[N, K, P]` give `[N, O, P]`, block by block of rows."""
        height, width = self.shape[0], math.prod(self.shape[1:])
        step = max(1, min(height, _AT_ONCE // max(width, 1)))
        buffer = np.empty((step, *self.shape[1:]), self.dtype)
        result = np.empty((len(columns), height, columns.shape[2]), self.dtype)
        for start in range(0, height, step):
            stop = min(start + step, height)
            block = self.rows(start, stop, buffer[: stop - start]).reshape(stop - start, width)
            np.matmul(block, columns, out=result[:, start:stop])
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        dense = self.rows(0, self.shape[0], np.empty(self.shape, self.dtype))
        return dense if dtype is None else dense.astype(dtype)


@dataclass(frozen=True, eq=False)
class HalfWeight(StreamedWeight):
    """A weight `[O, ...]` held as fp16 numbers: half the bytes to read for a product.

    Attributes:
        patterns: their bits `[O, K]`.
    """

    patterns: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, numbers: HalfArray) -> HalfWeight:
        """Hold `numbers [O, ...]`, which are copied only where they are not contiguous."""
        patterns = np.require(numbers, requirements=("C", "A")).view(np.uint16)
        patterns = patterns.reshape(len(numbers), -1)

        def rows(start: int, stop: int, out: Array) -> Array:
            widen(patterns[start:stop].reshape(-1), out.reshape(-1))
            return out

        return cls(numbers.shape, np.float32, rows, patterns)

    def product(self, columns: Array) -> Array:
        """As `StreamedWeight.product`; few columns are multiplied while the weight is read."""
        count, width, positions = columns.shape
        if count * positions > _FEW or (kernels := load_kernels()) is None:
            return super().product(columns)
        vectors = np.ascontiguousarray(columns.swapaxes(1, 2), np.float32).reshape(-1, width)
        result = np.empty((len(self.patterns), len(vectors)), np.float32)
        kernels.multiply(self.patterns, vectors, result)
        return result.reshape(-1, count, positions).swapaxes(0, 1)


def palettized(
    model: MLModel, indices: Value | None, tables: Any, dtype: Any
) -> StreamedWeight | None:
    """A weight of `constexpr_lut_to_dense`; None unless its tables serve groups of rows.

    Args:
        model: whose file holds the weight.
        indices: small unsigned integers `[O, ...]`.
        tables: `[G, 1, ..., 2^n, 1]`.
        dtype: what the decoded weight is of: float16, float32 or float64.
    """
    packed = None if indices is None else stored(model, indices)
    if packed is None:
        return None
    shape, entries = packed.shape, 1 << packed.bits
    by_rows = tables.ndim == len(shape) + 2 and all(n == 1 for n in tables.shape[1:-2])
    if not by_rows or tables.shape[-2:] != (entries, 1) or shape[0] % tables.shape[0]:
        return None
    flat = tables.reshape(-1, entries).astype(dtype, copy=False)

    def rows(start: int, stop: int, out: Array) -> Array:
        return decode(packed, flat, start=start, stop=stop, out=out)

    return StreamedWeight(shape, dtype, rows)


def plain(model: MLModel, value: Value, dtype: Any) -> StreamedWeight | None:
    """An fp16 or fp32 weight in its file; None for any other constant."""
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
    """Bytes that a floating-point weight takes as `dtype`; 0 for anything else."""
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype not in (DType.FP16, DType.FP32):
        return 0
    return int(math.prod(d or 0 for d in kind.shape)) * int(np.dtype(dtype).itemsize)


def fits_half(op: Operation) -> bool:
    """Whether an operation yields a weight of fp16 numbers that is large enough to be held so."""
    kind = op.outputs[0].type
    is_fp16 = isinstance(kind, TensorType) and kind.dtype is DType.FP16
    return is_fp16 and decoded_bytes(op, np.float16) >= LARGE
