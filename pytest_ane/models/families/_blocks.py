"""Shard ids of a plain stack: blocks `L00`, `L01`..., vocabulary slices `head.0`, `head.1`..."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Wire

_BLOCK = re.compile(r"L\d+")
_HEAD = re.compile(r"head\.\d+")


def wiring(shards: Sequence[str], family: str) -> tuple[Wire, ...]:
    """Blocks one after another, then the head's slices; `ManifestError` for any other shard."""
    for shard in shards:
        if not (is_block(shard) or is_head(shard)):
            raise ManifestError(
                f"Family {family!r} has no shard {shard!r}; blocks are L00, L01, ... and "
                "vocabulary slices of the head are head.0, head.1, ..."
            )
    blocks = sorted(filter(is_block, shards), key=block_index)
    heads = sorted(filter(is_head, shards), key=head_index)
    slices = (Wire(shard, gives="logits", mode="append", kind="head") for shard in heads)
    return (*map(Wire, blocks), *slices)


def starts_whole(shards: Sequence[str]) -> bool:
    blocks = sorted(map(block_index, filter(is_block, shards)))
    return blocks == list(range(len(blocks)))


def missing(shards: Sequence[str], layers: int) -> list[str]:
    listed = set(map(block_index, filter(is_block, shards)))
    return [f"L{i:02d}" for i in range(layers) if i not in listed]


def slices(shards: Sequence[str]) -> int:
    """How many slices the head is cut into, at least one; `ManifestError` where one is left out."""
    heads = sorted(filter(is_head, shards), key=head_index)
    if [head_index(shard) for shard in heads] != list(range(len(heads))):
        raise ManifestError(
            f"The head's slices are {', '.join(heads)}; number them head.0 to "
            f"head.{len(heads) - 1}, so that together they are the whole vocabulary."
        )
    return max(len(heads), 1)


def slice_bounds(vocabulary: int, parts: int, index: int) -> tuple[int, int]:
    """First and one past the last vocabulary row of a slice; slices differ by one row at most."""
    return vocabulary * index // parts, vocabulary * (index + 1) // parts


def block_index(shard: str) -> int:
    assert is_block(shard)
    return int(shard[1:])


def head_index(shard: str) -> int:
    assert is_head(shard)
    return int(shard.removeprefix("head."))


def is_block(shard: str) -> bool:
    return _BLOCK.fullmatch(shard) is not None


def is_head(shard: str) -> bool:
    return _HEAD.fullmatch(shard) is not None


def check_depth(
    label: str, blocks: Iterable[str], layers: int, index: Callable[[str], int] = block_index
) -> None:
    for shard in blocks:
        if index(shard) >= layers:
            raise SourceError(f"{label}: has {layers} layers, so no shard {shard}.")
