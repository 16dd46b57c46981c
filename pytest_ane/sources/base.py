"""What a source of weights offers, wherever the weights come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class Tokenizer(Protocol):
    """Text to token ids and back, as the source's own tokenizer does it."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written in the text count as such."""
        ...

    def chat(self, text: str) -> list[int]:
        """Token ids of the source's chat template with one user message, ready for the answer."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        ...


class Source(Protocol):
    """Named tensors and metadata. Tensors are read one at a time and never all at once."""

    @property
    def path(self) -> Path:
        """The file the weights come from."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the file in hex."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors."""
        ...

    def value(self, key: str) -> Any:
        """A metadata value; raises `SourceError` where the key is absent."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """A tensor in float32, rows outermost; `SourceError` if absent or of another shape."""
        ...

    def rows(self, name: str, index: Sequence[int], width: int) -> FloatArray:
        """Some rows of a matrix `[*, width]` in float32, `[len(index), width]`."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the file; raises `SourceError` where it is of an unknown kind."""
        ...
