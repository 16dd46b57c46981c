"""Rows of one table by number, from the file that an `[models.NAME.embedding]` table names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from pytest_ane.manifest.chain import Embedding
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.errors import SourceError

Read: TypeAlias = Callable[[Sequence[int]], Array]


@dataclass(frozen=True)
class RowTable:
    """A table of `height` rows of `width` numbers; only those that are asked for are read."""

    label: str
    height: int
    width: int
    scale: float
    _read: Read

    def rows(self, index: Sequence[int]) -> FloatArray:
        """Float32 `[len(index), width]`; `SourceError` for no such row, or NaN or infinity."""
        for row in index:
            if not 0 <= row < self.height:
                raise SourceError(f"{self.label}: has rows 0 to {self.height - 1}, not {row}.")
        rows: FloatArray = np.asarray(self._read(index), np.float32) * np.float32(self.scale)
        if not np.isfinite(rows).all():
            raise SourceError(f"{self.label}: one of the rows {list(index)[:4]} is not finite.")
        return rows


def open_rows(table: Embedding) -> RowTable:
    """Open a table; its values are read later.

    Raises:
        SourceError: the file is missing or broken, or the tensor is no matrix of numbers.
    """
    path = table.path
    if not path.is_file():
        raise SourceError(f"{path}: no such file; check the embedding in shards.toml.")
    of_source = path.suffix in (".gguf", ".safetensors")
    shape, read = (_of_source if of_source else _of_array)(table)
    extents = [extent for extent in shape if extent != 1]
    if len(extents) != 2:
        raise SourceError(f"{table.file}: has the shape {list(shape)}, which is no table of rows.")
    if len(shape) != 2 and math.prod(shape[:-1]) != extents[0]:
        raise SourceError(f"{table.file}: has the shape {list(shape)}; let a row be the last axis.")
    return RowTable(table.file, extents[0], extents[1], table.scale, read)


def _of_source(table: Embedding) -> tuple[Sequence[int], Read]:
    from pytest_ane.models.sources._gguf import GGUFSource
    from pytest_ane.models.sources._safetensors import SafetensorsSource

    source = (GGUFSource if table.path.suffix == ".gguf" else SafetensorsSource)(table.path)
    shape = source.shape(table.name)
    return shape, lambda index: source.rows(table.name, index, shape[-1])


def _of_array(table: Embedding) -> tuple[Sequence[int], Read]:
    try:
        stored: Any = np.load(table.path, mmap_mode="r", allow_pickle=False)
        array: Array = stored[table.name] if table.name else stored
    except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
        raise SourceError(f"{table.file}: cannot be read ({error}).") from None
    if array.dtype.kind not in "fiu":
        raise SourceError(f"{table.file}: holds {array.dtype}, not numbers.")
    return array.shape, lambda index: array[list(index)]
