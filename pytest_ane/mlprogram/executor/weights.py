"""Weights of matrix products, streamed from where they are stored or held in fp16.

Palettized ones are decoded straight from their packed indices. A word of whole indices is looked up
at once: a byte of 4-bit indices in a table of 256 pairs of values, three bytes of 6-bit ones as two
words of 12 bits. Nothing is unpacked, and index buffers stay in the cache; a weight of any size can
be decoded rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array, HalfArray
from pytest_ane.mlprogram.blob import load, packed
from pytest_ane.mlprogram.executor.dtypes import load_kernels, widen
from pytest_ane.mlprogram.records import Blob, DType, MLModel, Operation, TensorType, Value
from pytest_ane.mlprogram.values import unpack

_TYPES = {1: DType.UINT1, 2: DType.UINT2, 3: DType.UINT3, 4: DType.UINT4, 6: DType.UINT6,
          8: DType.UINT8}  # fmt: skip
_WIDE = (DType.FP16, DType.FP32)
_BLOCK = 1 << 17
"""Words looked up in one call."""
_TABLES = 1 << 15
"""Values that the tables of one call may hold."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Unsigned integers as they are stored: row-major, lowest bits first, no gaps.

    Stands in for the array of its elements (`np.asarray` unpacks it).

    Attributes:
        data: uint8 `[ceil(bits * size / 8)]`.
        bits: 1, 2, 3, 4, 6 or 8.
    """

    data: npt.NDArray[np.uint8]
    bits: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bits not in _TYPES:
            raise ValueError(f"elements of {self.bits} bits; there are: {[*_TYPES]}")
        if (n := self.data.size) != (size := -(-self.bits * self.size // 8)):
            raise ValueError(f"{n} bytes; {self.size} elements of {self.bits} bits take {size}")

    @property
    def ndim(self) -> int:
        """Number of axes of the array it stands for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the array it stands for."""
        return math.prod(self.shape)

    def elements(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Elements `[start, stop)` of the flattened array, unpacked."""
        # Eight elements take `bits` whole bytes.
        begin = start // 8
        data = self.data[begin * self.bits : -(-stop * self.bits // 8)]
        count = stop - begin * 8
        elements: npt.NDArray[np.uint8] = unpack(data, _TYPES[self.bits], count, "indices")
        return elements[start - begin * 8 :]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        unpacked = self.elements(0, self.size).reshape(self.shape)
        return unpacked if dtype is None else unpacked.astype(dtype)


def stored(model: MLModel, value: Value) -> Packed | None:
    """A constant of small unsigned integers as its weights file has it; None for any other."""
    kind = value.type
    bits = {v: k for k, v in _TYPES.items()}
    if not isinstance(kind, TensorType) or not isinstance(value.data, Blob):
        return None
    nbits, shape = bits.get(kind.dtype), tuple(int(d or 0) for d in kind.shape)
    return Packed(packed(model, value), nbits, shape) if nbits else None


def decode(
    indices: Packed, tables: Array, start: int = 0, stop: int | None = None,
    out: Array | None = None,
) -> Array:  # fmt: skip
    """Rows of a palettized weight: `dense[o, ...] = tables[o // (O / G), indices[o, ...]]`.

    Args:
        indices: `[O, ...]`.
        tables: `[G, 2^bits]`; each serves O / G rows.
        start: first row to decode.
        stop: row to stop before; None for all.
        out: C-contiguous array `[stop - start, ...]` to write into, of the tables' type.
    """
    height = indices.shape[0] if indices.shape else 1
    stop = height if stop is None else stop
    if tables.ndim != 2 or tables.shape[1] != 1 << indices.bits:
        raise ValueError(f"tables {tables.shape} for indices of {indices.bits} bits")
    if not len(tables) or height % len(tables):
        raise ValueError(f"{len(tables)} tables do not divide {height} rows")
    if not 0 <= start <= stop <= height:
        raise ValueError(f"rows {start} to {stop} of {height}")
    if out is None:
        shape = (stop - start, *indices.shape[1:]) if indices.shape else ()
        out = np.empty(shape, tables.dtype)
    width = math.prod(indices.shape[1:])
    if out.size:
        group = height // len(tables) * width
        _write(indices, tables, group, range(start * width, stop * width), out.reshape(-1))
    return out


def count(indices: Packed, groups: int) -> npt.NDArray[np.int64]:
    """How often each index occurs in each group of rows, which divide them: `[groups, 2^bits]`."""
    entries, size = 1 << indices.bits, indices.size // groups
    counts = np.zeros((groups, entries), np.int64)
    for part in _parts(range(indices.size), size, 1, _BLOCK):
        numbers = indices.elements(part.start, part.stop)
        counts[part.start // size] += np.bincount(numbers, minlength=entries)
    return counts


def _write(indices: Packed, tables: Array, group: int, span: range, flat: Array) -> None:
    """Decode a span of the flattened weight, `group` elements to a table."""
    word = 8 if 8 % indices.bits == 0 else 12
    values = word // indices.bits
    # Words of 12 bits come in pairs.
    unit = values * (1 if word == 8 else 2)
    at_once = max(min(_BLOCK * values // group, _TABLES // (values << word)), 1)
    short = group < values << word
    if short or group % unit or span.start % unit or span.stop % unit:
        _write_elements(indices, tables, group, span, flat)
        return
    # The elements that make up every word: `[2^word, word / bits]`.
    shifts = np.arange(0, word, indices.bits)
    elements = np.arange(1 << word)[:, None] >> shifts & (1 << indices.bits) - 1
    buffer = np.empty(min(_BLOCK + group // values, len(span) // values), np.intp)
    for part in _parts(span, group, at_once, _BLOCK * values):
        first, count = part.start // group, -(-len(part) // group)
        # Values of every word, the tables' one after another.
        table = tables[first : first + count][:, elements].reshape(-1, values)
        data = indices.data[part.start * indices.bits // 8 : part.stop * indices.bits // 8]
        numbers = buffer[: len(part) // values].reshape(count, -1)
        np.copyto(numbers, _words(data, word).reshape(numbers.shape))
        if count > 1:
            numbers += np.arange(0, count << word, 1 << word)[:, None]
        target = flat[part.start - span.start : part.stop - span.start]
        # A mode that writes without a buffer, and the fastest; no number is out of range.
        np.take(table, numbers, axis=0, out=target.reshape(*numbers.shape, values), mode="wrap")


def _parts(span: range, group: int, at_once: int, most: int) -> Iterator[range]:
    """Cut a span into whole groups, a few at once, or into parts of one group."""
    begin = span.start
    while begin < span.stop:
        if begin % group == 0 and span.stop - begin >= group and group <= most:
            end = begin + min(at_once, (span.stop - begin) // group) * group
        else:
            end = min(begin + most, (begin // group + 1) * group, span.stop)
        yield range(begin, end)
        begin = end


def _words(data: Array, word: int) -> Array:
    """Bytes as words: themselves, or two words of 12 bits for every three bytes."""
    if word == 8:
        return data
    low, middle, high = (data[i::3].astype(np.uint16) for i in range(3))
    words = np.empty((len(low), 2), np.uint16)
    words[:, 0] = low | (middle & 15) << 8
    words[:, 1] = middle >> 4 | high << 4
    return words


def _write_elements(indices: Packed, tables: Array, group: int, span: range, flat: Array) -> None:
    """The same, element by element: small groups, and rows that begin within a byte."""
    for begin in range(span.start, span.stop, _BLOCK):
        end = min(begin + _BLOCK, span.stop)
        numbers = np.arange(begin, end) // group * tables.shape[1]
        numbers += indices.elements(begin, end)
        target = flat[begin - span.start : end - span.start]
        np.take(tables, numbers, out=target, mode="clip")


LARGE = 1 << 16
"""Bytes from which a weight is worth streaming, or holding in fp16."""
_AT_ONCE = 1 << 20
"""Elements decoded at a time: their 4 MB stay in the cache until they are multiplied."""
_FEW = 8
"""Columns up to which the compiled product beats widening the weight for BLAS."""


@dataclass(frozen=True, eq=False)
class StreamedWeight:
    """A weight `[O, ...]` that is never held decoded as a whole; `np.asarray` decodes it.

    `rows(start, stop, out)` decodes rows `[start, stop)` into `out [stop - start, ...]`.
    """

    shape: tuple[int, ...]
    dtype: Any
    rows: Callable[[int, int, Array], Array]

    @property
    def ndim(self) -> int:
        """Number of axes, those of a kernel included."""
        return len(self.shape)

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """All rows, a few decoded at a time into one buffer, with their place."""
        height, width = self.shape[0], math.prod(self.shape[1:])
        step = max(1, min(height, _AT_ONCE // max(width, 1)))
        buffer = np.empty((step, *self.shape[1:]), self.dtype)
        for start in range(0, height, step):
            stop = min(start + step, height)
            yield slice(start, stop), self.rows(start, stop, buffer[: stop - start])

    def product(self, columns: Array) -> Array:
        """`weight columns`: `[O, K]` and `[N, K, P]` give `[N, O, P]`, block by block of rows."""
        result = np.empty((len(columns), self.shape[0], columns.shape[2]), self.dtype)
        for place, rows in self.blocks():
            block = rows.reshape(len(rows), math.prod(self.shape[1:]))
            np.matmul(block, columns, out=result[:, place])
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        dense = self.rows(0, self.shape[0], np.empty(self.shape, self.dtype))
        return dense if dtype is None else dense.astype(dtype)


@dataclass(frozen=True, eq=False)
class HalfWeight(StreamedWeight):
    """A weight `[O, ...]` held as fp16 patterns `[O, K]`: half the bytes to read for a product."""

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
        result = np.empty((len(vectors), len(self.patterns)), np.float32)
        kernels.multiply(self.patterns, vectors, result)
        return result.reshape(count, positions, -1).swapaxes(1, 2)


def palettized(
    model: MLModel, indices: Value | None, tables: Any, dtype: Any
) -> StreamedWeight | None:
    """A weight of palettes; None unless its tables `[G, 1, ..., 2^n, 1]` serve groups of rows."""
    packed = None if indices is None else stored(model, indices)
    if packed is None:
        return None
    shape, entries = packed.shape, 1 << packed.bits
    by_rows = tables.ndim == len(shape) + 2 and all(n == 1 for n in tables.shape[1:-2])
    if not by_rows or tables.shape[-2:] != (entries, 1) or shape[0] % tables.shape[0]:
        return None
    flat = tables.reshape(-1, entries).astype(dtype, copy=False)
    return StreamedWeight(shape, dtype, partial(decode, packed, flat))


def plain(model: MLModel, value: Value, dtype: Any) -> StreamedWeight | None:
    """An fp16 or fp32 weight in its file; None for any other constant."""
    kind = value.type
    floats = isinstance(kind, TensorType) and kind.shape and kind.dtype in _WIDE
    if not isinstance(value.data, Blob) or not floats:
        return None
    mapped = load(model, value)

    def rows(start: int, stop: int, out: Array) -> Array:
        np.copyto(out, mapped[start:stop])
        return out

    return StreamedWeight(mapped.shape, dtype, rows)


def decoded_bytes(op: Operation, dtype: Any) -> int:
    """Bytes that a floating-point weight takes as `dtype`; 0 for anything else."""
    kind = op.outputs[0].type
    if not isinstance(kind, TensorType) or kind.dtype not in _WIDE:
        return 0
    return int(math.prod(d or 0 for d in kind.shape)) * int(np.dtype(dtype).itemsize)


def fits_half(op: Operation) -> bool:
    """Whether an operation yields a weight of fp16 numbers that is large enough to be held so."""
    kind = op.outputs[0].type
    is_fp16 = isinstance(kind, TensorType) and kind.dtype is DType.FP16
    return is_fp16 and decoded_bytes(op, np.float16) >= LARGE
