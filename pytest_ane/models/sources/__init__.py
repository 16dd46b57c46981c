"""Where weights come from: GGUF, published safetensors checkpoints, or a seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from pytest_ane.manifest import SourceTable
from pytest_ane.manifest.chain import Embedding
from pytest_ane.mlprogram.arrays import Array, DoubleArray, FloatArray
from pytest_ane.mlprogram.digests import digests
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.base import JITTER, OUTLIER, Source, Spread, Tokenizer, lookup
from pytest_ane.models.sources.files import (
    COMPANIONS,
    GENERATION,
    INDEX,
    Checkpoint,
    locate,
    locate_snapshot,
    module_files,
    read_json,
    refuse_pickle,
)

__all__ = [
    "SeededSource", "Source", "Spread", "end_tokens", "identify", "locate", "open_source",
    "source_path",
]  # fmt: skip


GENERATOR = "1"
"""Raised whenever a change here alters a single byte: part of every cache key."""

_LEVELS = 1 << 16
_CHUNK = 1 << 16
"""Values at a time, a multiple of 4: what is in flight stays in the processor's cache."""
_MOST = 1 << 32

SpreadOf = Callable[[str, tuple[int, ...]], Spread]


class SeededSource:
    """Any tensor of any shape, each value drawn from the `Spread` that the family gives its name.

    Value `i` of a tensor, in row-major order, is the 16 bits `i` of the raw stream of a PCG64 that
    SHA-256 of generator, seed and name seeds, as an index into 65,536 quantiles of the spread in
    fp16. NumPy guarantees raw streams (NEP 19), SHA-256 and the quantiles are exact, so the bytes
    are the same everywhere. A tensor's rows can be drawn without what comes before them, because
    PCG64 jumps ahead.

    Args:
        seed: any integer from 0.
        spread: the family's; `rows` asks it about the shape `(0, width)` where no height is given.
        config: what `value` finds, by the published keys of a configuration.
    """

    synthetic = True
    names: Collection[str] = ()

    def __init__(
        self, seed: int, spread: SpreadOf, config: Mapping[str, Any] | None = None
    ) -> None:
        self._seed, self._spread, self._config = seed, spread, config or {}
        self.label, self.keys = f"seeded {seed}", self._config.keys()

    def value(self, key: str) -> Any:
        """What the configuration says."""
        return lookup(self._config, key, f"{self.label}: config has no key {key!r}.")

    def shape(self, name: str) -> tuple[int, ...]:
        """None is stored: `SourceError`."""
        raise SourceError(f"{self.label}: {name} has the shape that is asked for.")

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor in fp16, or those fp16 values in float32."""
        self._check(name, shape)
        out = np.empty(shape, dtype=dtype)
        self._fill(out.reshape(-1), name, self._table(name, shape, out.dtype), 0)
        return out

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        """Rows of a matrix `[*, width]`, `[height, width]` if given; neighbours drawn together."""
        self._check(name, (len(index), width))
        out = np.empty((len(index), width), dtype=dtype)
        table = self._table(name, (height or 0, width), out.dtype)
        for first, last in _runs(index):
            outside = height is not None and index[last - 1] >= height
            if index[first] < 0 or outside:
                row = max(index[first], height or 0) if outside else index[first]
                raise SourceError(f"{self.label}: {name} has no row {row}.")
            self._fill(out[first:last].reshape(-1), name, table, index[first] * width)
        return out

    @property
    def tokenizer(self) -> Tokenizer:
        """There is none: `SourceError`."""
        raise SourceError(
            f"{self.label}: synthetic weights come without a tokenizer; give prompts as ids."
        )

    def _fill(self, out: Array, name: str, table: Array, start: int) -> None:
        if table[0] == table[-1]:
            out[:] = table[0]
            return
        text = f"pytest-ane/{GENERATOR}/{self._seed}/{name}".encode()
        bits = np.random.PCG64(int.from_bytes(hashlib.sha256(text).digest(), "little"))
        bits.advance(start // 4)
        skip = start % 4
        for begin in range(-skip, out.size, _CHUNK):
            words = -(-min(_CHUNK, out.size - begin) // 4)
            drawn = bits.random_raw(words).astype("<u8", copy=False).view("<u2")
            part = out[max(begin, 0) : begin + _CHUNK]
            drawn = drawn[max(-begin, 0) :][: part.size]
            np.take(table, drawn, out=part, mode="clip")

    def _table(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        if dtype not in (np.float16, np.float32):
            raise SourceError(f"{self.label}: {name} is given as float16 or float32, not {dtype}.")
        spread = self._spread(name, shape)
        values = (spread.mean + spread.std * _quantiles(spread.outliers)).astype(np.float16)
        if spread.zeros:
            values[:: round(1 / spread.zeros)] = 0
        return values.astype(dtype, copy=False)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) > 8 or any(n < 0 for n in shape) or math.prod(shape) > _MOST:
            raise SourceError(
                f"{self.label}: {name} of shape {shape} cannot be made; a tensor has at most 8 "
                f"axes and {_MOST:,} values."
            )


@lru_cache(maxsize=16)
def _quantiles(outliers: float) -> DoubleArray:
    """Quantiles of the standard normal at mid-points, and for a share of them of N(+-5, 0.5^2)."""
    share = round(_LEVELS * outliers)
    sides = [
        side * OUTLIER + JITTER * _normal(count)
        for side, count in ((-1, share // 2), (1, share - share // 2))
    ]
    table: DoubleArray = np.concatenate([_normal(_LEVELS - share), *sides])
    table.flags.writeable = False
    return table


def _normal(count: int) -> DoubleArray:
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / count) for i in range(count)], dtype=np.float64)


def _runs(index: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches of an index that count upwards one by one, as `(first, past the last)`."""
    first = 0
    for i in range(1, len(index) + 1):
        if i == len(index) or index[i] != index[i - 1] + 1:
            yield first, i
            first = i


def open_source(table: SourceTable, spread: SpreadOf | None = None) -> Source:
    """Open a manifest's source, a seeded one with the family's `spread`; else `SourceError`."""
    if table.seeded is not None:
        assert spread is not None
        return SeededSource(table.seeded, spread, table.config)
    path = source_path(table)
    if _is_checkpoint(path):
        from pytest_ane.models.sources._safetensors import SafetensorsSource

        return SafetensorsSource(path, table.config)
    from pytest_ane.models.sources._gguf import GGUFSource

    return GGUFSource(path)


def identify(table: SourceTable, root: Path) -> dict[str, Any]:
    """What a model's weights depend on, JSON-serialisable: a part of every cache key.

    Of files the SHA-256 digests (`mlprogram.digests` says what is trusted), of a seeded source the
    seed and the generator's version; of all the manifest's `config`. Of a hub's repository also the
    commit. `root` is the cache folder, where digests of large files are remembered.

    Raises:
        SourceError: a file is missing or, with a `sha256` in the manifest, another one.
    """
    if table.seeded is not None:
        return {"seeded": table.seeded, "generator": GENERATOR, "config": table.config}
    path = source_path(table)
    sums = digests(_files(path), root)
    if table.sha256 not in (None, actual := sums.get(path.name)):
        if actual is None:
            raise SourceError(
                f"{path}: sha256 is the digest of one weights file, and this is none; leave it out "
                "of shards.toml's source."
            )
        raise SourceError(
            f"{path}: its SHA-256 is {actual}, not {table.sha256} as shards.toml says; the file is "
            "damaged, incomplete or another version."
        )
    identity = {"files": sums, "config": table.config}
    if table.hub is not None:
        identity["hub"] = {"id": table.hub.partition("@")[0], "commit": _snapshot(table).name}
    return identity


def source_path(table: SourceTable) -> Path:
    """The file or folder of a manifest's source that is not seeded; `SourceError` if missing."""
    if table.hub is not None:
        return _snapshot(table) / (table.file or "")
    path = table.path or locate(table.package or "", table.file or "")
    if not path.exists():
        raise SourceError(f"{path}: no such file; check the source in shards.toml.")
    return path


_ENDS = (
    "eos_token_id", "text_config.eos_token_id", "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
)  # fmt: skip


def end_tokens(table: SourceTable, source: Source) -> frozenset[int]:
    """Tokens at which a model's answer ends, none where nothing says it.

    By its configuration, and by `generation_config.json` beside published weights, which names
    those of a chat's turns (https://huggingface.co/docs/transformers/main_classes/text_generation).
    """
    said: list[Any] = []
    for key in _ENDS:
        with suppress(SourceError):
            said.append(source.value(key))
    if table.seeded is None:
        path = source_path(table)
        file = (path if path.is_dir() else path.parent) / GENERATION
        if _is_checkpoint(path) and file.is_file():
            said.append(read_json(file).get("eos_token_id"))
    tokens = [token for each in said for token in (each if isinstance(each, list) else [each])]
    return frozenset(token for token in tokens if type(token) is int)


def _snapshot(table: SourceTable) -> Path:
    assert table.hub is not None
    repository, _, revision = table.hub.partition("@")
    return locate_snapshot(repository, revision or None, table.file)


def _is_checkpoint(path: Path) -> bool:
    refuse_pickle(path)
    return path.is_dir() or path.suffix in (".safetensors", ".json")


def _files(path: Path) -> dict[str, Path]:
    if not _is_checkpoint(path):
        return {path.name: path}
    checkpoint = Checkpoint.find(path)
    # The index says which files are read.
    index = [] if checkpoint.index is None else [path.name if path.is_file() else INDEX]
    companions = (*COMPANIONS, *module_files(checkpoint.folder))
    files = {n: checkpoint.folder / n for n in (*checkpoint.files, *index, *companions)}
    return {name: file for name, file in files.items() if file.is_file()}


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
    """Open a table, whose values are read later; `SourceError` unless it is a matrix of numbers."""
    path, name = table.path, table.name
    shape: tuple[int, ...]
    read: Read
    if not path.is_file():
        raise SourceError(f"{path}: no such file; check the embedding in shards.toml.")
    if path.suffix in (".gguf", ".safetensors"):
        source = open_source(SourceTable(path=path))
        shape, read = source.shape(name), lambda index: source.rows(name, index, shape[-1])
    else:
        try:
            stored: Any = np.load(path, mmap_mode="r", allow_pickle=False)
            array: Array = stored[name] if name else stored
        except (OSError, ValueError, EOFError, KeyError, BadZipFile) as error:
            raise SourceError(f"{table.file}: cannot be read ({error}).") from None
        if array.dtype.kind not in "fiu":
            raise SourceError(f"{table.file}: holds {array.dtype}, not numbers.")
        shape, read = array.shape, lambda index: array[list(index)]
    extents = [extent for extent in shape if extent != 1]
    if len(extents) != 2:
        raise SourceError(f"{table.file}: has the shape {list(shape)}, which is no table of rows.")
    if len(shape) != 2 and math.prod(shape[:-1]) != extents[0]:
        raise SourceError(f"{table.file}: has the shape {list(shape)}; let a row be the last axis.")
    return RowTable(table.file, extents[0], extents[1], table.scale, read)
