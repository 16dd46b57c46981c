"""Llama models of a few channels with random weights, held in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Cut
from pytest_ane.models.families._decoders import LLAMA
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.sources.base import Tokenizer


@dataclass
class MemorySource:
    """A source of named arrays and values."""

    tensors: dict[str, FloatArray]
    values: dict[str, Any]
    label: str = "tiny.gguf"
    synthetic: bool = False
    read: list[str] = field(default_factory=list)

    @property
    def names(self) -> Collection[str]:
        return self.tensors.keys()

    @property
    def keys(self) -> Collection[str]:
        return self.values.keys()

    def value(self, key: str) -> Any:
        if key not in self.values:
            raise SourceError(f"{self.label}: no metadata key {key!r}.")
        return self.values[key]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def tensor(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32
    ) -> npt.NDArray[Any]:
        self.read.append(name)
        assert self.tensors[name].shape == shape
        return self.tensors[name].astype(dtype)

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> npt.NDArray[Any]:
        self.read.append(name)
        assert self.tensors[name].shape == (height or len(self.tensors[name]), width)
        return self.tensors[name][list(index)].astype(dtype)

    @property
    def tokenizer(self) -> Tokenizer:
        raise SourceError("no tokenizer")


def tiny_source(
    *,
    layers: int = 1,
    heads: int = 4,
    kv_heads: int = 2,
    head: int = 4,
    ffn: int = 24,
    vocabulary: int = 10,
    tied: bool = True,
    seed: int = 0,
) -> MemorySource:
    """Weights of a size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    width = heads * head

    def matrix(rows: int, columns: int) -> FloatArray:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm() -> FloatArray:
        return rng.uniform(0.5, 1.5, width).astype(np.float32)

    tensors = {"token_embd.weight": matrix(vocabulary, width), "output_norm.weight": norm()}
    if not tied:
        tensors["output.weight"] = matrix(vocabulary, width)
    for i in range(layers):
        block = {
            "attn_norm": norm(),
            "attn_q": matrix(width, width),
            "attn_k": matrix(kv_heads * head, width),
            "attn_v": matrix(kv_heads * head, width),
            "attn_output": matrix(width, width),
            "ffn_norm": norm(),
            "ffn_gate": matrix(ffn, width),
            "ffn_up": matrix(ffn, width),
            "ffn_down": matrix(width, ffn),
        }
        tensors |= {f"blk.{i}.{name}.weight": value for name, value in block.items()}
    return MemorySource(tensors, metadata(layers, heads, kv_heads, head, ffn, vocabulary))


def metadata(
    layers: int, heads: int, kv_heads: int, head: int, ffn: int, vocabulary: int
) -> dict[str, Any]:
    """The keys of a GGUF file of this architecture."""
    values: Mapping[str, Any] = {
        "block_count": layers,
        "embedding_length": heads * head,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "vocab_size": vocabulary,
    }
    return {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in values.items()}


def tiny_model(
    shards: Sequence[str] = ("L00",), *, context: int | None = None, **dimensions: Any
) -> DecoderModel:
    """A model of these dimensions cut into these shards, with states of `context` positions."""
    cut = Cut(tuple(shards), max_tokens=8, context=context or 8, stateful=context is not None)
    return LLAMA.open_model(tiny_source(**dimensions), cut)
