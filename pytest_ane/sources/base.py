"""What a source of weights offers, wherever the weights come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Spread:
    """How synthetic values are distributed: normal, with a share of outliers five times as wide.

    Attributes:
        mean: of all values.
        std: standard deviation of the normal part; 0 gives `mean` everywhere.
        outliers: share of values drawn with 5 `std`.
    """

    std: float
    mean: float = 0.0
    outliers: float = 0.0


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
    def label(self) -> str:
        """What messages call it: a path, or `seeded 7`."""
        ...

    @property
    def synthetic(self) -> bool:
        """Whether the values are made up: structure and size are real, the language is not."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors; empty for a synthetic source, which has any."""
        ...

    def value(self, key: str) -> Any:
        """A metadata value; raises `SourceError` where the key is absent."""
        ...

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
    ) -> npt.NDArray[Any]:
        """A tensor as float32 or float16, rows outermost; `SourceError` if absent or another shape.

        fp16 saves half the memory; what lies beyond fp16 becomes infinite there.
        """
        ...

    def rows(self, name: str, index: Sequence[int], width: int) -> FloatArray:
        """Some rows of a matrix `[*, width]` in float32, `[len(index), width]`."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the weights; `SourceError` where there is none we know."""
        ...
