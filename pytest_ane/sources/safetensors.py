"""Published checkpoints: safetensors files memory-mapped, `config.json`, and the tokenizer."""

from __future__ import annotations

import json
import math
import mmap
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from pytest_ane.core.arrays import Array, FloatArray
from pytest_ane.core.errors import SourceError
from pytest_ane.sources.base import Tokenizer
from pytest_ane.sources.checkpoint import Checkpoint, read_json
from pytest_ane.sources.settings import lookup, overridden
from pytest_ane.sources.tokenizer import read_tokenizer

_CONFIG = "config.json"


class SafetensorsSource:
    """A checkpoint in the published layout; tensors in bf16, fp16 or fp32, read one at a time.

    Args:
        path: a folder, an index, or one `.safetensors` file.
        config: values over those of `config.json`, nested tables key by key.

    Raises:
        SourceError: a file is missing or broken, or is none that is read without running
            code.
    """

    synthetic = False

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None) -> None:
        self._checkpoint = Checkpoint.find(path)
        self._overrides = config or {}
        if (self._checkpoint.folder / _CONFIG).is_file():
            # Now, for families take a key that cannot be had for one that is not there.
            _ = self._config
        folder = self._checkpoint.folder
        self._files = {name: TensorFile(folder / name) for name in self._checkpoint.files}

    @property
    def label(self) -> str:
        """The path as the manifest names it."""
        return str(self._checkpoint.path)

    @cached_property
    def names(self) -> Collection[str]:
        """Names of all tensors, from the index or the one file's header."""
        return self._homes.keys()

    def value(self, key: str) -> Any:
        """A value of `config.json`; dots lead into its tables, as in `text_config.hidden_size`."""
        absent = (
            f"{self.label}: no key {key!r} in config.json; does the family fit this checkpoint?"
        )
        return lookup(self._config, key, absent)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor, copied out of its file."""
        file = self._file(name)
        if (stored := file.shape(name)) != tuple(shape):
            raise SourceError(
                f"{file.path}: tensor {name!r} has shape {stored}, expected {tuple(shape)}."
            )
        return file.read(name, dtype)

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None
    ) -> FloatArray:
        """Rows of a matrix, and only these; of more axes, all but the last count as rows."""
        file = self._file(name)
        stored = file.shape(name)
        count = math.prod(stored[:-1])
        if len(stored) < 2 or stored[-1] != width or height not in (None, count):
            rows = "rows" if height is None else f"{height} rows"
            raise SourceError(
                f"{file.path}: tensor {name!r} has shape {stored}, expected {rows} of {width}."
            )
        if len(index) and not 0 <= min(index) <= max(index) < count:
            row = min(index) if min(index) < 0 else max(index)
            raise SourceError(f"{file.path}: {name} has rows 0 to {count - 1}, not {row}.")
        return file.rows(name, index)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of `tokenizer.json`; `SourceError` where there is none."""
        return read_tokenizer(self._checkpoint.folder)

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._checkpoint.folder / _CONFIG
        published = read_json(path) if path.is_file() or not self._overrides else {}
        return overridden(published, self._overrides)

    @cached_property
    def _homes(self) -> Mapping[str, str]:
        """The file of every tensor."""
        if self._checkpoint.index is not None:
            return self._checkpoint.index
        return {name: file for file in self._files for name in self._files[file].entries}

    def _file(self, name: str) -> TensorFile:
        if name not in self._homes:
            close = get_close_matches(name, self._homes, n=3)
            raise SourceError(
                f"{self.label}: no tensor {name!r} among its {len(self._homes)}; "
                + (f"nearest: {', '.join(close)}." if close else "does the family fit this file?")
            )
        file = self._files[self._homes[name]]
        if name not in file.entries:
            raise SourceError(
                f"{file.path}: tensor {name!r} is not in this file, where the index has it; index "
                "and files are of different downloads."
            )
        return file


_STORED: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
}
_CHUNK = 1 << 20
"""Values at a time, so that of a large tensor in bf16 no whole copy in float32 is made."""
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFile:
    """A safetensors file, opened at the first read; the library checks header and offsets."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def entries(self) -> dict[str, _Entry]:
        """Every tensor's type, shape and first byte.

        Raises:
            SourceError: the file is missing, damaged, incomplete, or no safetensors file.
        """
        try:
            with self.path.open("rb") as file:
                if (start := file.read(len(_POINTER))) == _POINTER:
                    raise SourceError(
                        f"{self.path}: a Git LFS pointer and not the weights; run: git lfs pull"
                    )
                with safe_open(self.path, framework="numpy"):  # Raises on anything that is amiss.
                    size = int.from_bytes(start[:8], "little")
                    file.seek(8)
                    header = json.loads(file.read(size))
        except OSError as error:
            raise SourceError(
                f"{self.path}: cannot be read ({error.strerror or error})."
            ) from error
        except (SafetensorError, ValueError, RecursionError) as error:
            raise SourceError(
                f"{self.path}: the safetensors file is damaged or incomplete "
                f"({self.path.stat().st_size:,} bytes; {str(error).rpartition('header: ')[2]}); "
                "fetch it again."
            ) from error
        header.pop("__metadata__", None)
        return {
            name: _Entry(e["dtype"], tuple(e["shape"]), 8 + size + e["data_offsets"][0])
            for name, e in header.items()
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape as stored; `KeyError` for a name that is not in the file."""
        return self.entries[name].shape

    def read(self, name: str, dtype: npt.DTypeLike) -> Array:
        """A whole tensor, as a copy in float16 or float32."""
        stored = self._stored(name)
        out = np.empty(stored.size, dtype=dtype)
        for at in range(0, out.size, _CHUNK):
            _convert(stored.reshape(-1)[at : at + _CHUNK], out[at : at + _CHUNK])
        return out.reshape(stored.shape)

    def rows(self, name: str, index: Sequence[int]) -> FloatArray:
        """Rows in float32; all axes but the last count as one. A range is not copied twice."""
        stored = self._stored(name)
        run = isinstance(index, range) and index.step == 1
        where: Any = slice(index[0], index[-1] + 1) if run and len(index) else list(index)
        picked = stored.reshape(-1, stored.shape[-1])[where]
        out = np.empty(picked.shape, dtype=np.float32)
        _convert(picked, out)
        return out

    def _stored(self, name: str) -> Array:
        """The tensor as it lies in the file, bf16 as its bits."""
        entry = self.entries[name]
        if entry.dtype not in _STORED:
            raise SourceError(
                f"{self.path}: tensor {name!r} is stored as {entry.dtype}; read are "
                f"{', '.join(_STORED)}, so use a checkpoint in one of these."
            )
        count = int(np.prod(entry.shape, dtype=np.int64))
        if not count:
            return np.zeros(entry.shape, _STORED[entry.dtype])
        flat = np.frombuffer(self._map, _STORED[entry.dtype], count, entry.start)
        return flat.reshape(entry.shape)

    @cached_property
    def _map(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _convert(stored: Array, out: Array) -> None:
    """Into float32 or float16, to nearest even; bf16 is the upper half of a float32.

    numpy converts fp16 one value after another: 15 times slower than torch, and far more where
    values overflow.
    """
    if stored.dtype == out.dtype:
        out[...] = stored
    elif stored.dtype != np.uint16:
        _copy(stored, out)
    elif out.dtype == np.float32:
        _widen(stored, out)
    else:
        wide = np.empty(stored.shape, np.float32)
        _widen(stored, wide)
        _copy(wide, out)


def _widen(stored: Array, out: Array) -> None:
    bits = out.view(np.uint32)
    bits[...] = stored
    bits <<= 16


def _copy(values: Array, out: Array) -> None:
    import torch

    with warnings.catch_warnings():
        # The map is read-only, and nothing writes to it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        torch.from_numpy(out).copy_(torch.from_numpy(values))
