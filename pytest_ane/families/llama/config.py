"""A Llama model's dimensions, and how its layers and vocabulary become shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ane.core.errors import SourceError
from pytest_ane.families import blocks
from pytest_ane.families.base import Cut, Wire
from pytest_ane.families.layout import Rotary
from pytest_ane.sources import Source
from pytest_ane.sources.settings import MAX_DIMENSION, MAX_LAYERS, check_variant, positive, whole

VERSION = "llama/2"


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
        context: positions of a key-value state; None where blocks keep none.
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
    context: int | None = None

    @property
    def rotary(self) -> Rotary:
        """Angles of a head."""
        return Rotary(self.head, self.theta)

    @classmethod
    def read(cls, source: Source, slices: int, cut: Cut) -> LlamaConfig:
        """Read from GGUF metadata; `SourceError` where it is of another architecture or absurd."""
        if (architecture := source.value("general.architecture")) != "llama":
            raise SourceError(f"{source.label}: architecture {architecture!r}, expected 'llama'.")

        def real(name: str) -> float:
            return positive(source.value(f"llama.{name}"), f"{source.label}: llama.{name}")

        def count(name: str, most: int = MAX_DIMENSION) -> int:
            return whole(source.value(f"llama.{name}"), f"{source.label}: llama.{name}", most)

        width, heads = count("embedding_length"), count("attention.head_count")
        kv_heads = count("attention.head_count_kv")
        if width % (2 * heads) or heads % kv_heads:
            raise SourceError(
                f"{source.label}: {width} channels, {heads} query heads and {kv_heads} key heads "
                "do not divide one another."
            )
        head = width // heads
        check_variant(source.label, "llama", source.value, {
            "llama.rope.dimension_count": (head,),
            "llama.attention.key_length": (head,),
            "llama.rope.scaling.type": ("none",),
        })  # fmt: skip
        return cls(
            layers=count("block_count", MAX_LAYERS),
            width=width,
            ffn=count("feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head=head,
            epsilon=real("attention.layer_norm_rms_epsilon"),
            theta=real("rope.freq_base"),
            vocabulary=count("vocab_size"),
            slices=slices,
            context=cut.context if cut.stateful else None,
        )


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """Blocks `L00`, `L01`... one after another, then head slices `head.0`, `head.1`...

    Raises:
        ManifestError: a shard id is neither.
    """
    return blocks.wiring(shards, "llama")
