"""What a source of weights offers, wherever they come from, and how its configuration is read.

A configuration has published keys, dotted where tables are nested. Models that a family would
compute wrongly are refused, rather than taken for another model.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import SourceError

OUTLIER, JITTER = 5.0, 0.5
"""Where outliers lie, in standard deviations of the other values, and how far they scatter."""


@dataclass(frozen=True)
class Spread:
    """How synthetic values are distributed: normal, with a share of outliers at 5 sigma.

    Trained matrices have such tails, and they decide how coarse a palette's steps are.

    Attributes:
        std: standard deviation of the normal part; 0 gives `mean` everywhere.
        outliers: share of values that lie near plus or minus 5 `std` (half a `std` about it).
        zeros: share of values that are 0, of all sizes alike.
    """

    std: float
    mean: float = 0.0
    outliers: float = 0.0
    zeros: float = 0.0

    @classmethod
    def with_outliers(cls, deviation: float, outliers: float) -> Spread:
        """About 0, with this standard deviation, outliers included."""
        return cls(deviation / (1 + outliers * (OUTLIER**2 + JITTER**2 - 1)) ** 0.5, 0.0, outliers)


class Tokenizer(Protocol):
    """Text to token ids and back, as the source's own tokenizer does it."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens written in the text count as such."""

    def chat(self, text: str) -> list[int]:
        """Token ids of the source's chat template with one user message, ready for the answer."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""


class Source(Protocol):
    """Named tensors and metadata. Tensors are read one at a time and never all at once."""

    @property
    def label(self) -> str:
        """What messages call it: a path, or `seeded 7`."""

    @property
    def synthetic(self) -> bool:
        """Whether the values are made up: structure and size are real, the language is not."""

    @property
    def names(self) -> Collection[str]:
        """Names of all tensors; empty for a synthetic source, which has any."""

    @property
    def keys(self) -> Collection[str]:
        """Keys of all metadata, of nested tables the outermost ones."""

    def value(self, key: str) -> Any:
        """A metadata value; raises `SourceError` where the key is absent."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape as stored, rows outermost; `SourceError` if absent."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """A tensor as float32 or float16, rows outermost; `SourceError` if absent or another shape.

        fp16 saves half the memory; what lies beyond fp16 becomes infinite there.
        """

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        """Rows `[len(index), width]` of a matrix; `SourceError` of another width, or `height`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the weights; `SourceError` where there is none we know."""


MAX_LAYERS = 10_000
"""As many as a model may have: lists of layers are made before any tensor is looked for."""
MAX_DIMENSION = 1 << 24
"""The largest dimension of a model, which is a vocabulary's, and far more than any has."""


def misshapen(path: Path, name: str, stored: object, expected: object) -> SourceError:
    """The error for a tensor of another shape than by the configuration."""
    return SourceError(
        f"{path}: tensor {name!r} has shape {stored}, and by its configuration {expected}; "
        "correct the configuration, or fetch both again."
    )


def check_rows(
    path: Path, name: str, stored: Sequence[int], index: Sequence[int], shape: tuple[Any, int]
) -> None:
    """`SourceError` for no such row, or another shape; all axes but the last count rows."""
    height, width = shape
    count = math.prod(stored[:-1])
    if len(stored) < 2 or stored[-1] != width or height not in (None, count):
        rows = "rows" if height is None else f"{height} rows"
        raise misshapen(path, name, stored, f"{rows} of {width}")
    if len(index) and not 0 <= min(index) <= max(index) < count:
        row = min(index) if min(index) < 0 else max(index)
        raise SourceError(f"{path}: {name} has rows 0 to {count - 1}, not {row}.")


def lookup(config: Mapping[str, Any], key: str, absent: str) -> Any:
    """What `text_config.hidden_size` leads to; `SourceError(absent)` where it leads nowhere."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise SourceError(absent)
        value = value[part]
    return value


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some keys replaced, nested tables key by key."""
    merged = dict(config)
    for key, value in overrides.items():
        old = merged.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = overridden(old, value) if nested else value  # type: ignore[arg-type]
    return merged


def architecture_of(value: Callable[[str], Any]) -> tuple[str, Any]:
    """The key by which a file says what model it holds, and what it says; None for nothing.

    `general.architecture` of GGUF, or `model_type` of `config.json`, of its `text_config` first.
    """
    for key in ("general.architecture", "text_config.model_type", "model_type"):
        try:
            said = value(key)
        except SourceError:
            continue
        if said:
            return key, said
    return "model_type", None


def positive(value: Any, what: str) -> float:
    """A number of a configuration; `what` begins the sentence of the `SourceError`."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    # A whole number of JSON may be larger than any float.
    if not plain or not 0 < value <= sys.float_info.max:
        raise SourceError(f"{what} is {value!r:.100}, no positive number.")
    return float(value)


def whole(value: Any, what: str, most: int = MAX_DIMENSION) -> int:
    """A dimension of a configuration: a whole number from 1 to `most`, else `SourceError`."""
    number = positive(value, what)
    if number != int(number) or number > most:
        raise SourceError(f"{what} is {value!r:.100}, no whole number up to {most:,}.")
    return int(number)


def check_numbers(
    label: str, names: Collection[str], numbered: str, count: int, what: str = "layers"
) -> None:
    """`SourceError` for a layer or expert too many; `numbered`'s group is its number, from 0."""
    pattern = re.compile(numbered)
    for name in names:
        if (match := pattern.match(name)) and int(match[1]) >= count:
            raise SourceError(
                f"{label}: has the tensor {name!r}, and by its configuration {count} {what}, so "
                f"the last ones would be left out; correct the number of {what}, or remove what is "
                "no part of the model."
            )


def not_finite(path: Path, name: str, row: int) -> SourceError:
    """The error for a tensor with NaN or infinity; `row` is the first that has some."""
    return SourceError(
        f"{path}: tensor {name!r} has NaN or infinity, first in row {row}; fetch the file again, "
        "or take a checkpoint of before its training diverged."
    )


def check_names(
    label: str, family: str, names: Collection[str], known: re.Pattern[str], hint: str = ""
) -> None:
    """`SourceError` for a tensor that a family would leave out unsaid, such as a bias."""
    if unknown := sorted(name for name in names if not known.fullmatch(name)):
        message = (
            f"{label}: family {family!r} does not compute with its tensor {unknown[0]!r} "
            f"({len(unknown)} such in all), so its reference would be another model. {hint}"
        )
        raise SourceError(message.rstrip())
