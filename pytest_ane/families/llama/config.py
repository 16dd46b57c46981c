"""A Llama model's dimensions, and how its layers and vocabulary become shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ane.errors import ManifestError, SourceError
from pytest_ane.sources import Source

VERSION = "llama/1"

_BLOCK = re.compile(r"L(\d+)")
_HEAD = re.compile(r"head\.(\d+)")


@dataclass(frozen=True)
class LlamaConfig:
    """Dimensions as GGUF's `llama.*` metadata keys give them.

    Attributes:
        width: channels of a hidden state (`embedding_length`).
        heads: query heads; `kv_heads` of them share keys and values in groups.
        head: channels of one head, all of them rotated.
        epsilon: RMSNorm's.
        theta: base of the rotary frequencies.
        slices: vocabulary slices of the head.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    epsilon: float
    theta: float
    vocabulary: int
    slices: int

    @classmethod
    def read(cls, source: Source, slices: int) -> LlamaConfig:
        """Read from GGUF metadata; `SourceError` where the file is of another architecture."""
        if (architecture := source.value("general.architecture")) != "llama":
            raise SourceError(f"{source.path}: architecture {architecture!r}, expected 'llama'.")

        def key(name: str) -> int | float:
            number: int | float = source.value(f"llama.{name}")
            return number

        width, heads = int(key("embedding_length")), int(key("attention.head_count"))
        return cls(
            layers=int(key("block_count")),
            width=width,
            ffn=int(key("feed_forward_length")),
            heads=heads,
            kv_heads=int(key("attention.head_count_kv")),
            head=width // heads,
            epsilon=float(key("attention.layer_norm_rms_epsilon")),
            theta=float(key("rope.freq_base")),
            vocabulary=int(key("vocab_size")),
            slices=slices,
        )


def chain(shards: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Blocks `L00`, `L01`... and head slices `head.0`, `head.1`..., each in running order.

    Raises:
        ManifestError: a shard id is neither.
    """
    for shard in shards:
        if not (_BLOCK.fullmatch(shard) or _HEAD.fullmatch(shard)):
            raise ManifestError(
                f"Family 'llama' has no shard {shard!r}; blocks are L00, L01, ... and "
                "vocabulary slices of the head are head.0, head.1, ..."
            )
    blocks = sorted((s for s in shards if _BLOCK.fullmatch(s)), key=block_index)
    heads = sorted((s for s in shards if _HEAD.fullmatch(s)), key=head_index)
    return tuple(blocks), tuple(heads)


def block_index(shard: str) -> int:
    """7 for `L07`."""
    match = _BLOCK.fullmatch(shard)
    assert match is not None
    return int(match[1])


def head_index(shard: str) -> int:
    """2 for `head.2`."""
    match = _HEAD.fullmatch(shard)
    assert match is not None
    return int(match[1])


def is_head(shard: str) -> bool:
    """Whether a shard is a vocabulary slice of the head."""
    return _HEAD.fullmatch(shard) is not None
