"""Published checkpoints: safetensors files memory-mapped, `config.json`, and the tokenizer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.core.errors import SourceError
from pytest_ane.sources.base import FloatArray, Tokenizer
from pytest_ane.sources.checkpoint import Checkpoint, read_json
from pytest_ane.sources.settings import lookup, overridden
from pytest_ane.sources.tensorfile import TensorFile
from pytest_ane.sources.tokenizer_files import read_tokenizer

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

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
    ) -> npt.NDArray[Any]:
        """A tensor, copied out of its file."""
        file = self._file(name)
        if (found := file.shape(name)) != tuple(shape):
            raise SourceError(
                f"{file.path}: tensor {name!r} has shape {found}, expected {tuple(shape)}."
            )
        return file.read(name, dtype)

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None
    ) -> FloatArray:
        """Rows of a matrix, and only these; of more axes, all but the last count as rows."""
        file = self._file(name)
        found = file.shape(name)
        count = math.prod(found[:-1])
        if len(found) < 2 or found[-1] != width or height not in (None, count):
            rows = "rows" if height is None else f"{height} rows"
            raise SourceError(
                f"{file.path}: tensor {name!r} has shape {found}, expected {rows} of {width}."
            )
        if len(index) and not 0 <= min(index) <= max(index) < count:
            row = min(index) if min(index) < 0 else max(index)
            raise SourceError(f"{file.path}: {name} has rows 0 to {count - 1}, not {row}.")
        return file.rows(name, index)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of `tokenizer.json`."""
        return read_tokenizer(self._checkpoint.folder)

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._checkpoint.folder / _CONFIG
        found = read_json(path) if path.is_file() or not self._overrides else {}
        return overridden(found, self._overrides)

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
