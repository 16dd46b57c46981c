"""A model's shards and the shapes of their weights, of which none is read."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pytest_ane.make.compress import stored_bytes
from pytest_ane.manifest import Compression, Palettize, SourceTable, Uncompressed
from pytest_ane.manifest.tables import ENCODERS
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.mlprogram.memory import bytes_text, free_memory
from pytest_ane.models.families import Cut, Family, LanguageModel, ports_of
from pytest_ane.models.families.bert.config import POOLING
from pytest_ane.models.families.registry import family_of, get_family, is_encoder
from pytest_ane.models.sources import Source, Tokenizer, open_source
from pytest_ane.models.sources.base import MAX_DIMENSION, architecture_of, whole

# A compression to begin with, valid for every weight, and what it makes of each shard.
#
# Palettes of 8 bits by k-means: of all that was measured on the default model, those keep closest
# to fp16 at half of its bytes (docs/explanations/compression.md); `pytest-ane recommend` goes on
# from there.

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


def choose_compression(shards: Sequence[ShardShapes]) -> Scheme:
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


# A model's shards and the shapes of their weights, of which none is read.

MAX_ROWS = 16_384
"""Rows of a head's slice: more outputs of a product by a constant may exceed the ANE's limit (rule
R032), and no axis but the channels' may be longer before A16 and M4 (rule R030)."""
MAX_TOKENS = 64
"""Positions of a call, as of the default model."""
_TEXT = 128
"""Positions of an encoder's call, which is a whole text: all-MiniLM-L6-v2 was trained on so many
(https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2)."""
_CONTEXTS = (512, 384, 256, 192, 128, 96, 64, 32)
"""Positions of states to begin with, the most that serve: probes fill them to the end, so each
costs time. The last axis of a state is a multiple of 32 on the ANE (rule R058)."""
_GROUPS_shapes = (32, 16, 8, 4, 2)
_LAYER = re.compile(r"\.(\d+)\.")
_SHARD_LAYER = re.compile(r"L(\d+)")
_STATE_SHARE = 8
"""The states of the whole model take at most this part of the free memory."""


@dataclass(frozen=True)
class Weight:
    """A weight of a shard's program.

    Attributes:
        name: as the converted program has it.
        compressible: whether it is a map's; norms, routers and tables are not compressed.
    """

    name: str
    shape: tuple[int, ...]
    compressible: bool

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ShardShapes:
    """One shard.

    Attributes:
        kind: what shards that cost alike are counted under, such as `block`.
        states: bytes of its states.
    """

    id: str
    kind: str
    weights: tuple[Weight, ...]
    states: int = 0

    @property
    def elements(self) -> int:
        """Numbers of all its weights."""
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True)
class Described:
    """What a source holds, and how it is cut.

    Attributes:
        path: what the source is called.
        cut: all shards of the model, in running order.
        vocabulary: tokens that there are; None where the family tells none.
        trained: positions that the model was trained for; None where the file tells none.
    """

    path: Path
    family: str
    source: StoredSource
    cut: Cut
    shards: tuple[ShardShapes, ...]
    vocabulary: int | None
    trained: int | None

    @property
    def has_states(self) -> bool:
        """Whether some shard keeps states."""
        return any(shard.states for shard in self.shards)

    @property
    def is_encoder(self) -> bool:
        """Whether it gives a text's embedding, and no logits."""
        return is_encoder(self.family, self.cut.shards)

    @property
    def heads(self) -> int:
        """Slices of the head."""
        return sum(shard.kind == "head" for shard in self.shards)


def describe(table: SourceTable, path: Path) -> Described:
    """Open a source, find its family and cut it into shards.

    Args:
        table: where it is.
        path: what it is called.

    Raises:
        SourceError: it is missing, broken, of no family of ours or of a variant that its family
            refuses.
    """
    source = cast("StoredSource", open_source(table, _no_spread))
    if not source.keys:
        raise SourceError(f"{path}: its configuration is empty; fetch it again.")
    name = family_of(source)
    family, trained = get_family(name), _trained(source)
    contexts = [c for c in _CONTEXTS if c <= (trained or c)] or list(_CONTEXTS[-1:])
    most = _TEXT if name in ENCODERS else MAX_TOKENS
    for context in _opening(family, source, contexts):
        tokens = min(most, context)
        # Every layer is missing from an empty cut.
        empty = family.open_model(source, Cut((), tokens, context, True))
        vocabulary = empty.description.get("vocabulary")
        ids = (*empty.missing, *_last(family, vocabulary))
        cut = Cut(ids, tokens, context, True)
        shards = _shapes(family, source, cut)
        if sum(shard.states for shard in shards) * _STATE_SHARE <= free_memory():
            break
    return Described(path, name, source, cut, shards, vocabulary, trained)


def _opening(family: Family, source: Source, contexts: Sequence[int]) -> Sequence[int]:
    """The contexts from the longest that the family takes: angles may change with the length.

    Raises:
        SourceError: what the family refuses is not the length.
    """
    first: SourceError | None = None
    for i, context in enumerate(contexts):
        try:
            family.open_model(source, Cut((), min(MAX_TOKENS, context), context, True))
        except SourceError as error:
            first = first or error
        else:
            return contexts[i:]
    assert first is not None
    raise first


def slices_of(vocabulary: int) -> int:
    """Slices of a head, none of more than `MAX_ROWS`.

    Among so many, or up to twice as many, the fewest whose rows divide best into groups that share
    a palette.
    """
    least = -(-vocabulary // MAX_ROWS)
    return min(range(least, 2 * least), key=lambda n: (-_group(vocabulary, n), n))


def _group(vocabulary: int, slices: int) -> int:
    rows = vocabulary // slices if vocabulary % slices == 0 else 1
    return next((group for group in _GROUPS_shapes if rows % group == 0), 1)


def _last(family: Family, vocabulary: object) -> Sequence[str]:
    """Ids of the shards after the blocks: the head's slices, or an encoder's pooling, or none."""
    slices = slices_of(vocabulary) if isinstance(vocabulary, int) else 0
    for ids in ([f"head.{i}" for i in range(slices)], [POOLING]):
        try:
            family.wiring(ids)
        except ManifestError:
            continue
        return ids
    return ()


def _trained(source: Source) -> int | None:
    """Positions that a model was trained for."""
    key, said = architecture_of(source.value)
    keys = ["text_config.max_position_embeddings", "max_position_embeddings"]
    for name in [f"{said}.context_length"] if key == "general.architecture" else keys:
        try:
            return whole(source.value(name), f"{source.label}: {name}", MAX_DIMENSION)
        except SourceError:
            continue
    return None


def _no_spread(name: str, shape: tuple[int, ...]) -> Any:
    raise NotImplementedError  # Only seeded weights are drawn.


class StoredSource(Source, Protocol):
    """A source of a file, which knows shapes."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape as stored."""


class _Shapes:
    """A source whose tensors have their shapes, and each one number in place of all.

    Tensors that are absent or of another shape raise what the source itself raises.
    """

    def __init__(self, source: StoredSource) -> None:
        self._source = source
        self.synthetic = source.synthetic

    @property
    def label(self) -> str:
        return self._source.label

    @property
    def names(self) -> Collection[str]:
        return self._source.names

    @property
    def keys(self) -> Collection[str]:
        return self._source.keys

    def value(self, key: str) -> Any:
        return self._source.value(key)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        if self._source.shape(name) != tuple(shape):
            return self._source.tensor(name, shape, dtype)
        return _hollow(tuple(shape), dtype)

    def rows(
        self,
        name: str,
        index: Sequence[int],
        width: int,
        height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:
        self._source.rows(name, index[:1], width, height, dtype)
        return _hollow((len(index), width), dtype)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._source.tokenizer

    @cached_property
    def layers(self) -> dict[int | None, frozenset[tuple[str, tuple[int, ...]]]]:
        """Names without the layer's number, and shapes, of each layer's tensors, and of others."""
        found: dict[int | None, set[tuple[str, tuple[int, ...]]]] = {}
        for name in self._source.names:
            number = _LAYER.search(name)
            bare = _LAYER.sub("..", name, count=1)
            layer = int(number[1]) if number else None
            found.setdefault(layer, set()).add((bare, self._source.shape(name)))
        return {layer: frozenset(names) for layer, names in found.items()}


def _hollow(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array of one number, which takes no memory."""
    return np.lib.stride_tricks.as_strided(np.ones(1, dtype), shape, [0] * len(shape))


def _shapes(family: Family, source: StoredSource, cut: Cut) -> tuple[ShardShapes, ...]:
    """All shards; those of one kind, ports and tensors are converted once."""
    hollow = _Shapes(source)
    model = family.open_model(cast("Source", hollow), cut)
    known: dict[Any, ShardShapes] = {}
    shards = []
    for wire in family.wiring(cut.shards):
        number = _SHARD_LAYER.match(wire.shard)
        tensors = hollow.layers.get(int(number[1]) if number else None)
        key = (wire.kind, ports_of(model, wire.shard), tensors)
        if key not in known:
            known[key] = _converted(model, wire.shard, wire.kind)
        alike = known[key]
        shards.append(ShardShapes(wire.shard, wire.kind, alike.weights, alike.states))
    return tuple(shards)


def _converted(model: LanguageModel, shard: str, kind: str) -> ShardShapes:
    """The weights of a shard's module."""
    from torch import nn

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        conversion = model.conversion(shard)
    maps = (nn.Conv1d, nn.Conv2d, nn.Linear)
    modules = dict(conversion.module.named_modules())
    states = {port.name for port in conversion.states}
    tensors = {
        **dict(conversion.module.named_parameters()),
        **dict(conversion.module.named_buffers()),
    }
    weights = tuple(
        Weight(
            name.replace(".", "_"),
            tuple(tensor.shape),
            isinstance(modules[name.rpartition(".")[0]], maps) and "router" not in name,
        )
        for name, tensor in tensors.items()
        if name not in states
    )
    held = sum(2 * math.prod(map(int, port.shape)) for port in conversion.states)
    return ShardShapes(shard, kind, weights, held)
