"""What a family offers: how one architecture is cut into shards, run, and converted.

A family is a module with the functions of `Family`; `open_model` gives a `LanguageModel`, which
knows one model's weights. Hidden states are float32 `[T, C]`, one row per position; what a shard
takes and returns beside that (layouts, rotary tables, masks) is the family's own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pytest_ane.sources import Source
from pytest_ane.sources.base import FloatArray

Inputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Port:
    """A shard's input or output in Core ML's terms: name and shape, `"T"` for the flexible axis."""

    name: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Conversion:
    """What the build needs to convert a shard: a traceable torch module and its ports."""

    module: Any
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


class Layout(Protocol):
    """The host's side of a shard: from hidden states to the artifact's inputs and back.

    Needs numpy only, so that a gate whose references are recorded loads no torch.
    """

    @property
    def width(self) -> int:
        """Channels of a hidden state."""
        ...

    def inputs(self, hidden: FloatArray) -> Inputs:
        """The artifact's inputs for hidden states `[T, C]` at positions 0 to T-1."""
        ...

    def output(self, outputs: Inputs) -> FloatArray:
        """The artifact's output as `[T, C]`, `C` being the hidden width or a vocabulary slice."""
        ...


class LanguageModel(Protocol):
    """One model: a source's weights seen through a family."""

    @property
    def source(self) -> Source:
        """Where the weights come from."""
        ...

    @property
    def layout(self) -> Layout:
        """How hidden states enter and leave the model's shards."""
        ...

    @property
    def description(self) -> dict[str, Any]:
        """JSON-serialisable configuration from which `Family.layout` rebuilds the layout."""
        ...

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` that enter the first shard."""
        ...

    def reference(self, shard: str) -> Callable[[FloatArray], FloatArray]:
        """The float32 torch module of one shard as a function `[T, C] -> [T, C']`."""
        ...

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, to be traced and converted."""
        ...


class Family(Protocol):
    """The functions of a family module."""

    VERSION: str
    """Raised whenever a change here alters what a shard computes: part of every cache key."""

    def open_model(self, source: Source, shards: Sequence[str]) -> LanguageModel:
        """See a source as a model cut into these shards; `SourceError` where they do not fit."""
        ...

    def layout(self, description: dict[str, Any]) -> Layout:
        """Rebuild a layout from `LanguageModel.description`, without the source."""
        ...

    def starts_whole(self, blocks: Sequence[str]) -> bool:
        """Whether these blocks are the model's first ones, without a gap."""
        ...

    def chain(self, shards: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The shards in running order: blocks one after another, then head slices side by side."""
        ...


def concatenate(slices: Sequence[FloatArray]) -> FloatArray:
    """Logits `[T, V]` from the outputs of the head's vocabulary slices."""
    return np.concatenate(slices, axis=1)
