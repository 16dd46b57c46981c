"""What a source of weights offers, wherever the weights come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array

ONE_MODEL = "correct the configuration, or fetch both again."
"""What to do where weights and configuration are not one model's."""
OUTLIER, JITTER = 5.0, 0.5
"""Where outliers lie, in standard deviations of the other values, and how far they scatter."""


@dataclass(frozen=True)
class Spread:
    """How synthetic values are distributed: normal, with a share of outliers at 5 sigma.

    Trained matrices have such tails, and they decide how coarse a palette's steps are.

    Attributes:
        mean: of all values.
        std: standard deviation of the normal part; 0 gives `mean` everywhere.
        outliers: share of values that lie near plus or minus 5 `std` (half a `std` about it).
        zeros: share of values that are 0, of all sizes alike.
    """

    std: float
    mean: float = 0.0
    outliers: float = 0.0
    zeros: float = 0.0

    @classmethod
    def of(cls, deviation: float, outliers: float) -> Spread:
        """About 0, with this standard deviation, outliers included."""
        return cls(deviation / (1 + outliers * (OUTLIER**2 + JITTER**2 - 1)) ** 0.5, 0.0, outliers)


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

    @property
    def keys(self) -> Collection[str]:
        """Keys of all metadata, of nested tables the outermost ones."""
        ...

    def value(self, key: str) -> Any:
        """A metadata value; raises `SourceError` where the key is absent."""
        ...

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor as float32 or float16, rows outermost; `SourceError` if absent or another shape.

        fp16 saves half the memory; what lies beyond fp16 becomes infinite there.
        """
        ...

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:
        """Some rows of a matrix `[*, width]` in float32 or float16, `[len(index), width]`.

        With `height`, a matrix of another number of rows is a `SourceError`.
        """
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the weights; `SourceError` where there is none we know."""
        ...
