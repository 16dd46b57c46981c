"""Published checkpoints: safetensors files memory-mapped, `config.json`, and the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources.base import (
    Tokenizer,
    check_rows,
    lookup,
    misshapen,
    not_finite,
    overridden,
)
from pytest_ane.models.sources.files import Checkpoint, read_json, read_modules
from pytest_ane.models.sources.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.json"


class SafetensorsSource:
    """A checkpoint in the published layout; tensors in bf16, fp16 or fp32, read one at a time.

    `path` is a folder, an index or one file; `config` goes over `config.json`, key by key.
    `SourceError` where a file is missing, broken, or none that is read without running code.
    """

    synthetic = False

    def __init__(self, path: Path, config: Mapping[str, Any] | None = None) -> None:
        self._checkpoint, self.label = Checkpoint.find(path), str(path)
        self._overrides = config or {}
        if (self._checkpoint.folder / _CONFIG).is_file():
            # Now, for families take a key that cannot be had for one that is not there.
            _ = self._config
        folder = self._checkpoint.folder
        self._files = {name: TensorFile(folder / name) for name in self._checkpoint.files}
        for file in self._files.values():
            file.check_kinds()

    @property
    def names(self) -> Collection[str]:
        return self._homes.keys()

    @property
    def keys(self) -> Collection[str]:
        return self._config.keys()

    def value(self, key: str) -> Any:
        absent = (
            f"{self.label}: no key {key!r} in config.json; does the family fit this checkpoint?"
        )
        return lookup(self._config, key, absent)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).shape(name)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        file = self._file(name)
        if (stored := file.shape(name)) != tuple(shape):
            raise misshapen(file.path, name, stored, tuple(shape))
        return file.read(name, dtype)

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        file = self._file(name)
        check_rows(file.path, name, file.shape(name), index, (height, width))
        return file.read(name, dtype, index)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._checkpoint.folder)

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._checkpoint.folder / _CONFIG
        if not path.is_file() and not self._overrides:
            raise SourceError(
                f"{path}: no such file; add the configuration that was published with the weights."
            )
        published = read_json(path) if path.is_file() else {}
        modules = read_modules(self._checkpoint.folder)
        return overridden({**published, **modules}, self._overrides)

    @cached_property
    def _homes(self) -> Mapping[str, str]:
        # transformers takes all that is in the files, the last one's by name, not the index's word.
        return {name: file for file in sorted(self._files) for name in self._files[file].entries}

    def _file(self, name: str) -> TensorFile:
        if name not in self._homes:
            if told := (self._checkpoint.index or {}).get(name):
                raise SourceError(
                    f"{self._files[told].path}: tensor {name!r} is not in this file, where the "
                    "index has it; index and files are of different downloads."
                )
            close = get_close_matches(name, self._homes, n=3)
            raise SourceError(
                f"{self.label}: no tensor {name!r} among its {len(self._homes)}; "
                + (f"nearest: {', '.join(close)}." if close else "does the family fit this file?")
            )
        return self._files[self._homes[name]]


_STORED = ("BF16", "F16", "F32")
_NARROW = ("F8_", "F6_", "F4")
_QUANTIZED = re.compile(
    r"\.(weight_(scale|scale_inv|scale_2|global_scale|packed|zero_point|shape|g_idx|format)"
    r"|qweight|qzeros|g_idx|SCB|absmax|(nested_)?quant_map|nested_absmax|quant_state\..*)$"
)
"""Names of compressed-tensors, FP8, GPTQ, AWQ and bitsandbytes."""
_POINTER = b"version https://git-lfs"


class TensorFile:
    """A safetensors file, opened at the first read and mapped; the library checks its header."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def entries(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Every tensor's stored type and shape; needs no torch."""
        try:
            with self.path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    raise SourceError(
                        f"{self.path}: a Git LFS pointer and not the weights; run: git lfs pull"
                    )
            with safe_open(self.path, framework="numpy") as opened:
                tensors = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                return {n: (t.get_dtype(), tuple(t.get_shape())) for n, t in tensors.items()}
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

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape as stored; `KeyError` for a name that is not in the file."""
        return self.entries[name][1]

    def check_kinds(self) -> None:
        """Raise `SourceError` for a tensor of a quantized checkpoint, by its name or its type."""
        for name, (kind, _) in self.entries.items():
            whole = name.endswith(".weight") and kind[0] in "IU"
            if whole or kind.startswith(_NARROW) or _QUANTIZED.search(name):
                raise SourceError(
                    f"{self.path}: tensor {name!r} ({kind}) is of a quantized checkpoint, and "
                    f"weights are read in {', '.join(_STORED)}; use the checkpoint that it was "
                    "made from, or its GGUF file."
                )

    def read(self, name: str, dtype: npt.DTypeLike, index: Sequence[int] | None = None) -> Array:
        """A tensor, or rows of it; to nearest even, by torch.

        numpy converts fp16 one value after another, 15 times slower.
        """
        import torch

        stored = self.entries[name][0]
        if stored not in _STORED:
            raise SourceError(
                f"{self.path}: tensor {name!r} is stored as {stored}; read are "
                f"{', '.join(_STORED)}, so use a checkpoint in one of these."
            )
        tensor: Tensor = self._opened.get_tensor(name)
        if index is not None:
            run = isinstance(index, range) and index.step == 1
            where: Any = slice(index[0], index[-1] + 1) if run and len(index) else list(index)
            tensor = tensor.flatten(0, -2)[where]
        if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all():
            finite = tensor.isfinite().reshape(len(tensor) if tensor.ndim else 1, -1).all(1)
            row = finite.tolist().index(False)
            raise not_finite(self.path, name, row if index is None else index[row])
        out = np.empty(tuple(tensor.shape), dtype)
        torch.from_numpy(out).copy_(tensor)
        return out

    @cached_property
    def _opened(self) -> Any:
        return safe_open(self.path, framework="pt")
