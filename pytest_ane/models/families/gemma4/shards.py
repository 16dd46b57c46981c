"""Shard ids of this family, `L00.attn`, `L00.p0` to `L00.p7`, `head.0`, and their running order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.models.families import blocks
from pytest_ane.models.families.base import Wire
from pytest_ane.models.families.blocks import is_head
from pytest_ane.models.families.gemma4.config import PACKS

_ID = re.compile(r"L(\d{1,4})\.(?:attn|p([0-7]))")
_LAST = PACKS - 1


class Part(NamedTuple):
    """What a layer's shard computes; parts sort in running order.

    Attributes:
        layer: its number.
        pack: number of the pack; -1 for attention, which runs before the packs.
    """

    layer: int
    pack: int

    @property
    def is_attention(self) -> bool:
        """Whether this is the layer's first half."""
        return self.pack < 0

    @property
    def combines(self) -> bool:
        """Whether this is the pack that ends its layer."""
        return self.pack == _LAST


def part(shard: str) -> Part:
    """What a shard id other than the head's stands for.

    Raises:
        ManifestError: it is none of this family's.
    """
    match = _ID.fullmatch(shard)
    if match is None:
        raise ManifestError(
            f"Family 'gemma4' has no shard {shard!r}; there are L00.attn, L00.p0 to L00.p{_LAST} "
            "for every layer, and vocabulary slices of the head head.0, head.1, ..."
        )
    return Part(int(match[1]), int(match[2] or -1))


def pack_of(shard: str) -> Part | None:
    """The pack that a shard is; None of attention and of the head's slices."""
    return None if is_head(shard) or part(shard).is_attention else part(shard)


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """The shards in running order: layer by layer, attention before packs, the head last.

    Packs sum into the stream `moe`, which the last one takes besides `x`.
    """
    parts = sorted((shard for shard in shards if not is_head(shard)), key=part)
    return (*map(_wire, parts), *blocks.wiring([*filter(is_head, shards)], "gemma4"))


def _wire(shard: str) -> Wire:
    of = part(shard)
    if of.is_attention:
        return Wire(shard, kind="attention")
    if of.combines:
        return Wire(shard, takes=("x", "moe"), kind="last pack")
    return Wire(shard, gives="moe", mode="add" if of.pack else "set", kind="pack")


def layer_shards(layer: int) -> tuple[str, ...]:
    """Ids of a layer's nine shards: attention and eight packs."""
    return (f"L{layer:02d}.attn", *(f"L{layer:02d}.p{pack}" for pack in range(PACKS)))


def starts_whole(shards: Sequence[str]) -> bool:
    """Whether no shard is missing before the last of these; before the head, none of a layer."""
    parts = sorted(part(shard) for shard in shards if not is_head(shard))
    layers, rest = divmod(len(parts), 1 + PACKS)
    prefix = [part(shard) for i in range(layers + 1) for shard in layer_shards(i)]
    return parts == prefix[: len(parts)] and not (rest and any(map(is_head, shards)))
