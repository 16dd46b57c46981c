"""A model's shards: the shapes of their weights, of which none is read, and what they will take."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pytest_ane.make.compress import stored_bytes
from pytest_ane.make.disk import Estimate, Volume, temporary_folder, volumes
from pytest_ane.manifest import Compression, Model, Palettize, SourceTable, Uncompressed
from pytest_ane.manifest.ids import as_range
from pytest_ane.manifest.tables import ENCODERS
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.mlprogram.memory import bytes_text, free_memory
from pytest_ane.models.families import Cut, Family, LanguageModel, ports_of
from pytest_ane.models.families.bert.config import POOLING
from pytest_ane.models.families.registry import family_of, get_family, is_encoder
from pytest_ane.models.sources import Source, open_source
from pytest_ane.models.sources.base import MAX_DIMENSION, architecture_of, whole

# The shapes.

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
_LAYER = re.compile(r"\.(\d+)\.")
_SHARD_LAYER = re.compile(r"L(\d+)")
_STATE_SHARE = 8
"""The states of the whole model take at most this part of the free memory."""


@dataclass(frozen=True)
class Weight:
    """A weight of a shard's program; norms, routers and tables are not compressible."""

    name: str
    shape: tuple[int, ...]
    compressible: bool

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ShardShapes:
    """One shard: its weights, and bytes of its states; `kind` is such as `block`."""

    id: str
    kind: str
    weights: tuple[Weight, ...]
    states: int = 0

    @property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)


@dataclass(frozen=True)
class Described:
    """What a source is called and holds, and how it is cut: all shards, in running order.

    Attributes:
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
        return any(shard.states for shard in self.shards)

    @property
    def is_encoder(self) -> bool:
        return is_encoder(self.family, self.cut.shards)

    @property
    def heads(self) -> int:
        return sum(shard.kind == "head" for shard in self.shards)


def describe(table: SourceTable, path: Path) -> Described:
    """Open a source, find its family and cut it into shards; `path` is what it is called.

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
    described: Described | None = None
    refused: SourceError | None = None
    for context in contexts:
        tokens = min(most, context)
        try:
            # Every layer is missing from an empty cut.
            empty = family.open_model(source, Cut((), tokens, context, True))
        except SourceError as error:  # The angles of so many positions may be others.
            refused = refused or error
            continue
        vocabulary = empty.description.get("vocabulary")
        cut = Cut((*empty.missing, *_last(family, vocabulary)), tokens, context, True)
        shards = _shapes(family, source, cut)
        described = Described(path, name, source, cut, shards, vocabulary, trained)
        if sum(shard.states for shard in shards) * _STATE_SHARE <= free_memory():
            break
    if described is None:
        assert refused is not None
        raise refused
    return described


def slices_of(vocabulary: int) -> int:
    """Slices of a head, none of more than `MAX_ROWS`.

    Among so many, or up to twice as many, the fewest whose rows divide best into groups that share
    a palette.
    """
    least = -(-vocabulary // MAX_ROWS)

    def group(slices: int) -> int:
        rows = vocabulary // slices if vocabulary % slices == 0 else 1
        return next((group for group in (*_GROUPS, 2) if rows % group == 0), 1)

    return min(range(least, 2 * least), key=lambda n: (-group(n), n))


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

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
        shards.append(replace(known[key], id=wire.shard))
    return tuple(shards)


def _converted(model: LanguageModel, shard: str, kind: str) -> ShardShapes:
    from torch import nn

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        conversion = model.conversion(shard)
    maps = (nn.Conv1d, nn.Conv2d, nn.Linear)
    modules = dict(conversion.module.named_modules())
    states = {port.name for port in conversion.states}
    tensors = (*conversion.module.named_parameters(), *conversion.module.named_buffers())
    weights = tuple(
        Weight(
            name.replace(".", "_"),
            tuple(tensor.shape),
            isinstance(modules[name.rpartition(".")[0]], maps) and "router" not in name,
        )
        for name, tensor in tensors
        if name not in states
    )
    held = sum(2 * math.prod(map(int, port.shape)) for port in conversion.states)
    return ShardShapes(shard, kind, weights, held)


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
    """Palettes for most weights and for the head's slices.

    Attributes:
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
        return self.fp16 + self.compressed


def choose_compression(shards: Sequence[ShardShapes]) -> Scheme:
    """Palettes of the largest groups that divide most weights, and of other groups for others.

    The converter may fold a head's soft cap into its weight, which then has no name of its own: so
    the head is told by its shards.
    """
    routed = any("router" in weight.name for shard in shards for weight in shard.weights)

    def compressible(weight: Weight) -> bool:
        return weight.compressible and not (routed and weight.name.startswith(_ATTENTION))

    large = [(s.kind, w) for s in shards for w in s.weights if w.elements > _THRESHOLD]
    heads = [w for kind, w in large if kind == "head" and compressible(w)]
    named: dict[str, list[Weight]] = {}
    for kind, weight in large:
        if kind != "head" and compressible(weight):
            named.setdefault(weight.name, []).append(weight)
    groupings = {name: _common(alike) for name, alike in named.items()}
    elements: Counter[Grouping] = Counter()
    for name, grouping in groupings.items():
        elements[grouping] += named[name][0].elements
    main = max(elements, key=lambda grouping: elements[grouping], default=None)
    head = _common(heads) if heads else main
    if all(shard.kind == "head" for shard in shards):
        main = head
    others = {_glob(name): own for name, own in sorted(groupings.items()) if own != main}
    kept = [w.name for _, w in large if not compressible(w) and len(w.shape) > 1]
    return Scheme(main, head, others, tuple(_kept(kept)))


def size_of(shard: ShardShapes, compression: Compression) -> Size:
    """What a shard's package takes on disk, within some percent."""
    text = _HEAD if shard.kind == "head" else _BLOCK
    for weight in shard.weights:
        text += _ALIGNED + (_NORM if "norm" in weight.name else _MAP)
    compressed = text
    for weight in shard.weights:
        settings = compression.for_weight(weight.name, ("conv",))
        small = isinstance(settings, Palettize) and weight.elements <= settings.weight_threshold
        plain = small or len(weight.shape) < 2
        compressed += stored_bytes(weight.shape, Uncompressed() if plain else settings)
    return Size(2 * shard.elements + text, compressed)


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
    yield from (f"*{word}*" for word in words if any(word in name for name in names))
    yield from sorted({_glob(n) for n in names if not any(word in n for word in words)})


# What a model takes: bytes of its packages, disk and memory, and whether there is as much.

_PROCESS, _ELEMENT, _LARGEST = 600 * 10**6, 10, 44
"""Bytes that building and judging a shard takes: of a process that has loaded torch and
coremltools, for each of a shard's numbers, and for each of its largest weight's, whose palettes are
found at once. The sum is at or above what was measured, by 20 % at most: 675 MB of a block of
SmolLM2-135M, 950 MB of a third of its head, 1.73 GB of a block of 61 million numbers, 2.33 GB of a
head's slice of 34 million."""
_FLOAT32 = 8
"""Bytes for each number of a shard's float32 reference: as it is read, and as it is used."""
_SLACK, _MORE = 1.05, 50_000
"""A budget is so many times what is expected, and bytes more for a longer program."""


def measure(
    shards: Sequence[ShardShapes], model: Model, cache: Path
) -> tuple[dict[str, Any], Iterator[str]]:
    """What a model takes, compressed as the manifest has it; `cache` need not be there.

    Returns:
        Bytes of the packages by shard, of the states, on volumes, and of memory for the largest
        shard; and lines on them, with what will not suffice.
    """
    sizes = {
        shape.id: size_of(shape, shard.requested)
        for shape, shard in zip(shards, model.shards, strict=True)
    }
    total = sum(size.compressed for size in sizes.values())
    largest = max(size.both for size in sizes.values())
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    heaviest = max(shards, key=_memory)
    facts: dict[str, Any] = {
        "shards": sizes,
        "states": sum(shard.states for shard in shards),
        "disk": volumes(folder, temporary_folder(), Estimate(len(sizes), total, largest, total), 1),
        "memory": {
            "shard": heaviest.id,
            "build": _memory(heaviest),
            "reference": _PROCESS + _FLOAT32 * max(shard.elements for shard in shards),
            "free": free_memory(),
        },
    }
    return facts, _told(shards, **facts)


def _memory(shard: ShardShapes) -> int:
    largest = max((weight.elements for weight in shard.weights), default=0)
    return _PROCESS + _ELEMENT * shard.elements + _LARGEST * largest


def _told(
    kinds: Sequence[ShardShapes],
    shards: Mapping[str, Size],
    states: int,
    disk: Sequence[Volume],
    memory: Mapping[str, Any],
) -> Iterator[str]:
    alike: dict[object, list[str]] = {}
    for shard in kinds:
        size = shards[shard.id]
        near = round(size.fp16, -4), round(size.compressed, -4)
        alike.setdefault((shard.kind, near), []).append(shard.id)
    for ids in alike.values():
        yield f"{ranges(ids)}: {'each ' if len(ids) > 1 else ''}{shards[ids[0]]}"
    fp16, compressed = (sum(getattr(s, k) for s in shards.values()) for k in ("fp16", "compressed"))
    held = f"; states of {bytes_text(states)}" if states else ""
    yield f"all {len(shards)} shards: {Size(fp16, compressed)}{held}"
    yield f"disk: {' · '.join(map(str, disk))}"
    build, reference, free = (bytes_text(memory[key]) for key in ("build", "reference", "free"))
    yield (
        f"memory: about {build} to build and judge {memory['shard']}, the largest shard, "
        f"{reference} for its float32 reference; {free} free"
    )
    smallest = min(shards, key=lambda id: shards[id].both)
    for volume in disk:
        if (volume.needed or 0) > volume.free:
            yield (
                f"the disk will not hold all of it ({volume}): begin with {smallest}, free some "
                "space (pytest-ane cache prune), or name another folder with --ane-cache=DIR"
            )
    if memory["build"] > memory["free"]:
        fit = [shard.id for shard in kinds if _memory(shard) <= memory["free"]]
        what = f"select others, such as {fit[0]}" if fit else "use a machine with more"
        yield (
            f"memory will not suffice for {memory['shard']}, which takes about {build}: {what}, or "
            "close other programs"
        )


def budgets(
    shards: Sequence[ShardShapes], by_shard: Mapping[str, Size]
) -> Iterator[tuple[str, int, float | None]]:
    """Limits that follow from sizes, of shards by a glob such as `L*.p*`: bytes, least ratio."""
    groups: dict[str, list[ShardShapes]] = {}
    for shard in shards:
        groups.setdefault(re.sub(r"\d+", "*", shard.id), []).append(shard)
    for glob, group in groups.items():
        most = {shard.id: int(_SLACK * by_shard[shard.id].compressed) + _MORE for shard in group}
        ratio = min(2 * shard.elements / most[shard.id] for shard in group)
        least = math.floor(100 * ratio) / 100
        yield glob, max(most.values()), least if least > 1 else None


def ranges(ids: Sequence[str]) -> str:
    """Ids as the manifest has them: `L00-L29, head.0-head.3`, `L{00-29}.attn, L{00-29}.p{0-7}`."""
    heads = [shard for shard in ids if shard.startswith("head.")]
    layers = [shard for shard in ids if re.match(r"L\d", shard)]
    last = [shard for shard in ids if shard not in {*layers, *heads}]
    parts: dict[str, list[str]] = {}
    for shard in layers:
        layer, _, part = shard.partition(".")
        parts.setdefault(part, []).append(layer)
    # Parts such as p0 to p7 that the same layers have.
    alike: dict[tuple[str, ...], list[str]] = {}
    for part, layers in parts.items():
        alike.setdefault((part.rstrip("0123456789"), *layers), []).append(part)
    terms = [_range(of, numbered) for (_, *of), numbered in alike.items()]
    return ", ".join([*terms, *([_range(heads, [""])] if heads else []), *last])


def _range(layers: Sequence[str], parts: Sequence[str]) -> str:
    """Layers in a row as a range, with each of their parts; others one by one."""
    whole, part = _braces(layers), _braces(parts)
    if parts == [""]:
        plain = f"{layers[0]}-{layers[-1]}" if whole and len(layers) > 1 else None
        return plain or ", ".join(layers)
    if whole and part:
        return f"{whole}.{part}"
    return ", ".join(f"{layer}.{part}" for layer in layers for part in parts)


def _braces(names: Sequence[str]) -> str | None:
    """`L00`, `L01`... as `L{00-29}`; one name as it is; None where they are no range."""
    if len(names) == 1:
        return names[0]
    stem = names[0].rstrip("0123456789")
    braces = f"{stem}{{{names[0].removeprefix(stem)}-{names[-1].removeprefix(stem)}}}"
    try:
        return braces if as_range(braces) == list(names) else None
    except ValueError:  # It would count backwards.
        return None
