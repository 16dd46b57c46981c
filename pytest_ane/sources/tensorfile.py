"""One safetensors file, memory-mapped; the library checks its header."""

from __future__ import annotations

import json
import mmap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from pytest_ane.core.errors import SourceError

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
    """A safetensors file, opened when first asked; the library checks header, sizes and offsets."""

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
        """A tensor's shape."""
        return self.entries[name].shape

    def read(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A whole tensor, as a copy in float16 or float32."""
        stored = self._stored(name)
        out = np.empty(stored.size, dtype=dtype)
        for at in range(0, out.size, _CHUNK):
            _convert(stored.reshape(-1)[at : at + _CHUNK], out[at : at + _CHUNK])
        return out.reshape(stored.shape)

    def rows(self, name: str, index: Sequence[int]) -> npt.NDArray[np.float32]:
        """Rows in float32; all axes but the last count as one. A range is not copied twice."""
        stored = self._stored(name)
        run = isinstance(index, range) and index.step == 1
        where: Any = slice(index[0], index[-1] + 1) if run and len(index) else list(index)
        picked = stored.reshape(-1, stored.shape[-1])[where]
        out = np.empty(picked.shape, dtype=np.float32)
        _convert(picked, out)
        return out

    def _stored(self, name: str) -> npt.NDArray[Any]:
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


def _convert(stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
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


def _widen(stored: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    bits = out.view(np.uint32)
    bits[...] = stored
    bits <<= 16


def _copy(values: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    import torch

    with warnings.catch_warnings():
        # The map is read-only, and nothing writes to it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        torch.from_numpy(out).copy_(torch.from_numpy(values))
