"""A compression to begin with, valid for every weight, and what it makes of each shard.

Palettes of 8 bits by k-means: of all that was measured on the default model, those keep closest to
fp16 at half of its bytes (docs/explanations/compression.md); `pytest-ane recommend` goes on from
there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_ane.make.compress import stored_bytes
from pytest_ane.manifest import Compression, Palettize, Uncompressed
from pytest_ane.mlprogram.memory import bytes_text
from pytest_ane.tools._scaffold.shapes import ShardShapes, Weight

NBITS = 8
_THRESHOLD = 2048
"""Weights with at most this many elements stay as they are: the default `weight_threshold`."""
_GROUPS = (32, 16, 8, 4)
"""Output channels that share a palette, the fewest bytes first."""
_WORTH = 4 * 2**NBITS
"""Elements of a group from which its palette, of 2^nbits values of 2 bytes, takes at most half of
the bytes that it saves."""
_BLOCK, _HEAD, _NORM, _MAP = 17_700, 1_700, 3_250, 500
"""Bytes of a package besides its weights: of a block or a head without its maps and norms, and what
the text of each of these adds. From packages that were built: 27,474 bytes of a Llama's block with
states, 4,858 of a head, 40,120 of Gemma 3's block."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
"""Maps before a router. An error of theirs moves its near ties, so that other experts run; they are
a few percent of a mixture: 3 % of Mixtral 8x7B, 4 % of Gemma-4-26B-A4B."""
_ALIGNED = 64
"""What begins at a multiple of so many bytes has as many for its header: a weight, and a table."""

Grouping = int | None
"""Output channels that share a palette; None for one palette for the whole weight."""


@dataclass(frozen=True)
class Scheme:
    """Palettes for a model's weights.

    Attributes:
        grouping: of most weights.
        head: of the head's slices.
        overrides: of weights whose channels do not divide so, by glob.
        keep: globs of what stays fp16.
    """

    grouping: Grouping
    head: Grouping
    overrides: Mapping[str, Grouping]
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Size:
    """Bytes of a shard's package, uncompressed and compressed."""

    fp16: int
    compressed: int

    def __str__(self) -> str:
        return f"{bytes_text(self.fp16)} in fp16, {bytes_text(self.compressed)} compressed"

    @property
    def both(self) -> int:
        """Of the temporary files of its build."""
        return self.fp16 + self.compressed


def choose(shards: Sequence[ShardShapes]) -> Scheme:
    """Palettes of the largest groups that divide most weights, and of other groups for others.

    The converter may fold a head's soft cap into its weight, which then has no name of its own: so
    the head is told by its shards.
    """
    if any("router" in weight.name for shard in shards for weight in shard.weights):
        shards = [_attention_kept(shard) for shard in shards]
    heads = [shard for shard in shards if shard.kind == "head"]
    blocks = [shard for shard in shards if shard.kind != "head"]
    groupings: dict[str, Grouping] = {}
    elements: Counter[Grouping] = Counter()
    for name, alike in _by_name(_large(blocks)).items():
        groupings[name] = _common(alike)
        elements[groupings[name]] += alike[0].elements
    main = max(elements, key=lambda grouping: elements[grouping], default=None)
    head = _common(weights) if (weights := [*_large(heads)]) else main
    main = main if blocks else head
    others = {_glob(name): own for name, own in sorted(groupings.items()) if own != main}
    kept = [w.name for w in _large(shards, compressible=False) if len(w.shape) > 1]
    return Scheme(main, head, others, tuple(_kept(kept)))


def _attention_kept(shard: ShardShapes) -> ShardShapes:
    weights = (
        replace(w, compressible=w.compressible and not w.name.startswith(_ATTENTION))
        for w in shard.weights
    )
    return replace(shard, weights=tuple(weights))


def size_of(shard: ShardShapes, compression: Compression) -> Size:
    """What a shard's package takes on disk, within some percent.

    Args:
        shard: its weights.
        compression: as the manifest has it.
    """
    text = _HEAD if shard.kind == "head" else _BLOCK
    for weight in shard.weights:
        text += _ALIGNED + (_NORM if "norm" in weight.name else _MAP)
    compressed = sum(_stored(weight, compression) for weight in shard.weights)
    return Size(2 * shard.elements + text, compressed + text)


def _stored(weight: Weight, compression: Compression) -> int:
    settings = compression.for_weight(weight.name, ("conv",))
    small = isinstance(settings, Palettize) and weight.elements <= settings.weight_threshold
    if small or len(weight.shape) < 2:
        settings = Uncompressed()
    return stored_bytes(weight.shape, settings)


def _large(shards: Iterable[ShardShapes], *, compressible: bool = True) -> Iterator[Weight]:
    """Weights that are compressed unless `keep` names them."""
    for shard in shards:
        for weight in shard.weights:
            if weight.elements > _THRESHOLD and weight.compressible == compressible:
                yield weight


def _by_name(weights: Iterable[Weight]) -> dict[str, list[Weight]]:
    named: dict[str, list[Weight]] = {}
    for weight in weights:
        named.setdefault(weight.name, []).append(weight)
    return named


def _common(weights: Iterable[Weight]) -> Grouping:
    """The largest groups that divide the channels of all these weights, where that is worth it."""
    shapes = {weight.shape for weight in weights}
    fits = (
        group
        for group in _GROUPS
        if all(rows % group == 0 and group * math.prod(rest) >= _WORTH for rows, *rest in shapes)
    )
    return next(fits, None)


def _glob(name: str) -> str:
    """`head_weight` as `head*`, which fits the converted program's names too."""
    return f"{name.removesuffix('_weight')}*"


def _kept(names: Sequence[str]) -> Iterator[str]:
    """Globs of names, by the words that families use for what is no map."""
    words = ("norm", "router", "scale", "order")
    for word in words:
        if any(word in name for name in names):
            yield f"*{word}*"
    yield from sorted({_glob(n) for n in names if not any(word in n for word in words)})
