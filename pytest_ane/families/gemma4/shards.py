"""Shard ids of this family, `L00.attn`, `L00.p0` to `L00.p7`, `head.0`, and their running order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ane.core.errors import ManifestError
from pytest_ane.families.base import Wire
from pytest_ane.families.gemma4.config import PACKS

_ID = re.compile(r"L(?P<layer>\d{1,4})\.(attn|p(?P<pack>[0-7]))|head\.(?P<slice>\d{1,4})")
_LAST = PACKS - 1


@dataclass(frozen=True, order=True)
class ShardRole:
    """What a shard computes; parts sort in running order.

    Attributes:
        layer: index of the layer, past any for a head slice.
        index: of the pack or slice; -1 for attention, which runs before the packs.
    """

    layer: float
    index: int
    kind: Literal["attn", "pack", "head"]

    @property
    def combines(self) -> bool:
        """Whether this is the pack that ends its layer."""
        return self.kind == "pack" and self.index == _LAST

    def wire(self, shard: str) -> Wire:
        """Packs sum into the stream `moe`, which the last one takes besides `x`."""
        if self.kind == "head":
            return Wire(shard, gives="logits", mode="append", kind="head")
        if self.kind == "attn":
            return Wire(shard, kind="attention")
        if self.combines:
            return Wire(shard, takes=("x", "moe"), kind="last pack")
        return Wire(shard, gives="moe", mode="add" if self.index else "set", kind="pack")


def role(shard: str) -> ShardRole:
    """What a shard id stands for.

    Raises:
        ManifestError: it is none of this family's.
    """
    match = _ID.fullmatch(shard)
    if match is None:
        raise ManifestError(
            f"Family 'gemma4' has no shard {shard!r}; there are L00.attn, L00.p0 to L00.p{_LAST} "
            "for every layer, and vocabulary slices of the head head.0, head.1, ..."
        )
    if match["slice"]:
        return ShardRole(float("inf"), int(match["slice"]), "head")
    if match["pack"]:
        return ShardRole(int(match["layer"]), int(match["pack"]), "pack")
    return ShardRole(int(match["layer"]), -1, "attn")


def in_order(shards: Sequence[str]) -> tuple[str, ...]:
    """Shard ids in running order: layer by layer, attention before packs, the head last."""
    return tuple(sorted(shards, key=role))


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """The shards in running order, with the streams they take and give."""
    return tuple(role(shard).wire(shard) for shard in in_order(shards))


def layer_shards(layer: int) -> tuple[str, ...]:
    """Ids of a layer's nine shards: attention and eight packs."""
    return (f"L{layer:02d}.attn", *(f"L{layer:02d}.p{pack}" for pack in range(PACKS)))


def starts_whole(shards: Sequence[str]) -> bool:
    """Whether no shard is missing before the last of these.

    How many layers there are is taken from the shards.
    """
    parts = sorted(map(role, shards))
    if not parts:
        return True
    layers = [int(p.layer) for p in parts if p.kind != "head"]
    whole = [role(shard) for i in range(max(layers, default=-1) + 1) for shard in layer_shards(i)]
    wanted = [p for p in whole if p <= parts[-1]]
    return [p for p in parts if p.kind != "head"] == wanted
