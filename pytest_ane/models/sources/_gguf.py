"""GGUF files: weights, metadata and tokenizer, memory-mapped through the `gguf` package."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.base import Tokenizer, check_rows, misshapen, not_finite
from pytest_ane.models.sources.tokenizer import gguf_tokenizer

_MAGIC = b"GGUF"
_ARRAY = int(gguf.GGUFValueType.ARRAY)
_MOST_ITEMS = 1 << 22
"""Longest array of metadata: the largest vocabularies have some 260,000 tokens."""


class GGUFSource:
    """A GGUF file, whose tensors are dequantized when read; `SourceError` of a damaged one."""

    synthetic = False

    def __init__(self, path: Path) -> None:
        self._path, self.label = path, str(path)
        self._reader = _open(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.names: Collection[str] = self._tensors.keys()
        self.keys: Collection[str] = tuple(self._reader.fields)
        for name in self._tensors:
            if 0 in self.shape(name):
                raise SourceError(
                    f"{path}: tensor {name!r} has shape {self.shape(name)}, an axis of 0; fetch "
                    "the file again."
                )

    def value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise SourceError(
                f"{self._path}: no metadata key {key!r}; is this the right GGUF file?"
            )
        try:
            return field.contents()
        except UnicodeDecodeError as error:
            text = f"{self._path}: the metadata key {key!r} is not UTF-8 text"
            raise SourceError(f"{text}; fetch the file again.") from error

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        return self._dequantize(name, shape, slice(None), dtype)

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        """Rows of a matrix, dequantizing only those; of more axes, all but the last are rows."""
        stored = self.shape(name)
        check_rows(self._path, name, stored, index, (height, width))
        return self._dequantize(name, stored, np.asarray(index, dtype=np.int64), dtype)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return gguf_tokenizer(self.value, str(self._path))

    def _get(self, name: str) -> gguf.ReaderTensor:
        if name not in self._tensors:
            raise SourceError(
                f"{self._path}: no tensor {name!r} among its {len(self._tensors)}; "
                "does the family in shards.toml fit this file?"
            )
        return self._tensors[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows outermost; GGUF lists the innermost axis first."""
        return tuple(int(n) for n in reversed(self._get(name).shape))

    def _dequantize(
        self, name: str, shape: tuple[int, ...], rows: Any, dtype: npt.DTypeLike
    ) -> Array:
        tensor = self._get(name)
        if self.shape(name) != shape:
            raise misshapen(self._path, name, self.shape(name), shape)
        try:
            stored = tensor.data
            if not isinstance(rows, slice):
                stored = stored.reshape(-1, stored.shape[-1])
            with np.errstate(all="ignore"):
                data = gguf.dequantize(stored[rows], tensor.tensor_type)
        except NotImplementedError as error:
            raise SourceError(
                f"{self._path}: tensor {name!r} is stored as {tensor.tensor_type.name}, which the "
                "gguf package cannot expand; use a file in another quantization."
            ) from error
        if data.size and not np.isfinite((data.min(), data.max())).all():
            row = int(np.flatnonzero(~np.isfinite(data).reshape(len(data), -1).all(1))[0])
            raise not_finite(self._path, name, row if isinstance(rows, slice) else int(rows[row]))
        # A copy: F32 tensors come as views of the read-only map, which torch cannot wrap.
        with np.errstate(over="ignore"):
            return np.array(data, dtype=dtype)


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """gguf's reader, which trusts every length in the file, with those lengths checked."""

    data: Any

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if isinstance(self.data, np.memmap):
            # The same mapped bytes; a slice of a memmap costs several times one of an array.
            self.data = self.data.view(np.ndarray)
        try:
            items = super()._get(offset, dtype, count, override_order)
        except ValueError:  # Not a whole number of items is left.
            items = ()
        if len(items) < count:
            raise ValueError(f"it ends within what begins at byte {offset:,}")
        return items

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        # An array begins with its element type in 4 bytes and its length in 8.
        if int(raw_type) != _ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = gguf.GGUFValueType(self._get(orig_offs, np.uint32)[0])
        length = int(self._get(orig_offs + 4, np.uint64)[0])
        if length > _MOST_ITEMS:
            raise ValueError(f"it has an array of {length:,} items")
        if kind == _ARRAY or not length:
            return super()._get_field_parts(orig_offs, raw_type)
        # gguf's reader reads one item after another, at a second for the strings of a vocabulary.
        begin = orig_offs + 12
        if kind == gguf.GGUFValueType.STRING:
            items, end = self._strings(begin, length)
        else:
            items = [self._get(begin, self.gguf_scalar_to_np[kind], length)]
            end = begin + items[0].nbytes
        return end - orig_offs, items, list(range(len(items))), [gguf.GGUFValueType.ARRAY, kind]

    def _strings(self, begin: int, length: int) -> tuple[list[Array], int]:
        order, items = ">Q" if self.endianess == gguf.GGUFEndian.BIG else "<Q", []
        size = struct.Struct(order).unpack_from
        try:
            for _ in range(length):
                end = begin + 8 + size(self.data, begin)[0]
                items.append(self.data[begin + 8 : end])
                begin = end
        except struct.error as error:
            raise ValueError(f"it ends within what begins at byte {begin:,}") from error
        if begin > len(self.data):
            raise ValueError(f"it ends before byte {begin:,}")
        return items, begin


def _open(path: Path) -> gguf.GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}).") from error
    if magic != _MAGIC:
        raise SourceError(
            f"{path}: not a GGUF file, for it begins with {magic!r}, not {_MAGIC!r}; "
            "fetch it again."
        )
    try:
        return _Reader(path)
    # A damaged file surfaces as whatever numpy or the reader raises on what it finds there.
    except Exception as error:
        raise SourceError(
            f"{path}: the GGUF file is damaged or incomplete ({path.stat().st_size:,} bytes; "
            f"{error}); fetch it again."
        ) from error
