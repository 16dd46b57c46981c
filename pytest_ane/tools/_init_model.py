"""`pytest-ane init --from`: a manifest of a model that somebody has, right the first time.

The source is cut into shards, whose weights' shapes are known without reading one of them; from
these follow a compression that is valid for every weight, the sizes of the packages, and what it
takes to build and judge them. Golden prompts are by the model's own tokenizer.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pytest_ane.make.cache import default_root
from pytest_ane.make.compress import stored_bytes
from pytest_ane.make.disk import Estimate, temporary_folder, volumes
from pytest_ane.manifest import Palettize, Prompt, Shard, SourceTable, Uncompressed, parse
from pytest_ane.manifest.ids import in_ranges
from pytest_ane.manifest.tables import ENCODERS
from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.memory import bytes_text, free_memory
from pytest_ane.mlprogram.text import printable
from pytest_ane.models.families import Cut, Family, LanguageModel, ports_of
from pytest_ane.models.families.bert import POOLING
from pytest_ane.models.families.registry import family_of, get_family, is_encoder
from pytest_ane.models.sources import Source, open_source, source_path
from pytest_ane.models.sources.base import MAX_DIMENSION, architecture_of, whole
from pytest_ane.models.sources.files import OnlyGGUFError, locate_snapshot
from pytest_ane.tools._init_packages import Made, quoted, render

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w./-]+\.gguf))?")
"""A repository, `@` a branch, tag or commit, and a file, as in the paths of `HfFileSystem`:
https://huggingface.co/docs/huggingface_hub/guides/hf_file_system."""
_NAME_ONE = (
    "name a folder of safetensors with its config.json, a GGUF file, or a repository of the "
    "Hugging Face cache, as Qwen/Qwen3-0.6B."
)
_LONGEST = 64


def scaffold(source: str, manifest: Path, cache: Path | None = None) -> Made:
    """A manifest of a model; nothing is written.

    `source` is a folder or file of safetensors, a GGUF file, or a repository of the local Hugging
    Face cache: `Qwen/Qwen3-0.6B`, at another revision than `main` `Qwen/Qwen3-0.6B@v2`, or a file
    of one, `ggml-org/gemma-3-270m-GGUF/gemma-3-270m-Q8_0.gguf`.

    `SourceError` is as of `describe`; `ManifestError` where its name cannot stand in a manifest.
    """
    table, name = _find(source)
    where = _toml(table, manifest.parent)
    model = describe(table, name)
    prompts, scheme = choose_prompts(model), choose_compression(model.shards)
    text = partial(
        render, "model.toml.jinja", model=model, name=model_name(name), where=where,
        scheme=scheme, prompts=prompts, nbits=NBITS, ranges=", ".join(in_ranges(model.cut.shards)),
    )  # fmt: skip
    # The limits follow from sizes, and these from the compression as the manifest has it.
    shards = parse(text(limits=()), manifest).models[0].shards
    facts = _costs(model.shards, shards, cache or default_root())
    limited = text(limits=[*_budgets(model.shards, facts["shards"])])
    parse(limited, manifest)
    judged = (
        f"{len(prompts.prompts)} texts" if model.is_encoder else f"{prompts.positions} positions"
    )
    notes = [f"the prompts are random ids: {prompts.without}"] if prompts.without else []
    lines = (
        f"family {model.family}, {len(model.shards)} shards; behaviour judges {judged}",
        *notes,
        *_costs_lines(model.shards, facts),
        f"next: pytest --ane-shards={model.shards[0].id} -m gate",
        "then: pytest --ane-shards=all -m gate",
    )
    about = {"family": model.family, "positions": prompts.positions, "notes": notes}
    return Made(limited, lines, about | facts)


def _find(source: str) -> tuple[SourceTable, Path]:
    """Where a model is, a repository at the commit of the cache, and what it is called."""
    if not source:
        raise SourceError(f"--from names nothing; {_NAME_ONE}")
    path = Path(source).expanduser()
    with suppress(OSError, ValueError):  # Too long a name, or a NUL in it.
        if path.exists():
            return SourceTable(path=path.absolute()), path.absolute()
    if not (parts := _REPOSITORY.fullmatch(source)):
        raise SourceError(
            f"{printable(source)}: no such file or folder; check the path, or {_NAME_ONE}"
        )
    hub, revision, file = parts.groups()
    try:
        snapshot = locate_snapshot(hub, revision, file)
    except OnlyGGUFError as error:
        names = ", ".join(f"{source}/{name}" for name in error.files)
        raise SourceError(f"{source}: a repository of GGUF files; name one: {names}.") from error
    except SourceError as error:
        why = str(error).replace("; run: ", "; check the path, or run: ")
        raise SourceError(f"{source}: no such file or folder, and {why}") from error
    return SourceTable(hub=f"{hub}@{snapshot.name}", file=file), Path(hub, file or "")


def _toml(table: SourceTable, folder: Path) -> str:
    file, folder = source_path(table), folder.absolute()
    keys = table.model_dump(include={"hub", "file"}, exclude_none=True)
    if table.path is not None:
        path = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
        # No manifest may say ".", which is what an empty path is.
        keys = {"path": f"../{folder.resolve().name}" if path == "." else path}
    if file.is_file() and file.suffix != ".json":
        keys["sha256"] = file_digest(file)
    return f"{{ {', '.join(f'{key} = {quoted(value)}' for key, value in keys.items())} }}"


def model_name(path: Path) -> str:
    """A model's name in the manifest, of its file's or folder's."""
    stem = path.stem if path.suffix in (".gguf", ".safetensors", ".json") else path.name
    if (stem.startswith("model") and path.is_file()) or (stem == "model" and path.is_dir()):
        stem = path.absolute().parent.name
    name = re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")
    return name[:_LONGEST].rstrip("-_") or "model"


MIN_POSITIONS = 60
"""Positions that behaviour judges, the first of each prompt left out: one near tie among them is
less than 2 % of top-1."""
_GREEDY = 10
_ANSWER = 24
"""Tokens of the reference's own answer to a message: 14 more runs of it than greedy text takes, 4 s
of processor for the default model. Faults show on ordinary chat before they show elsewhere."""
_IDS = 24
"""Tokens of a prompt of random ids."""
_SEED = 20260101

_PROMPTS = (
    ("facts", "text", "The capital of France is Paris. The Seine runs through the city, and the "
     "Louvre holds the Mona Lisa."),
    ("chat", "chat", "Explain in one sentence why the sky is blue."),
    ("prose", "text", "Once upon a time, there was a little girl named Lily who loved to play "
     "outside with her friends."),
    ("code", "text", "def add(a, b):\n    return a + b\n\nprint(add(2, 3))"),
    ("question", "chat", "What should I cook tonight with eggs and spinach?"),
    ("science", "text", "Water boils at 100 degrees Celsius at sea level. At higher altitudes it "
     "boils sooner, because the air is thinner."),
    ("history", "text", "In 1969 two astronauts landed on the Moon, while a third one stayed in "
     "orbit around it."),
)  # fmt: skip
_LEAST = 4
"""Prompts of a model with a tokenizer, of different kinds, though fewer had enough positions."""


@dataclass(frozen=True)
class Prompts:
    """Golden prompts, how many positions behaviour judges, and why they are random ids, if so."""

    prompts: tuple[Prompt, ...]
    positions: int
    without: str = ""


def choose_prompts(model: Described) -> Prompts:
    """Texts, and messages where there is a chat template; random ids where there is no tokenizer.

    What the tokenizer lacks, or the shards do not take, is left out. An encoder has all, as texts.
    """
    limit = model.cut.context if model.has_states else model.cut.max_tokens
    chosen: list[Prompt] = []
    positions = 0
    why = "its tokenizer makes nothing of the texts that init has"
    try:
        tokenizer = model.source.tokenizer
    except SourceError as error:
        tokenizer, why = None, str(error).removeprefix(f"{model.path}: ")
    for name, usual, text in _PROMPTS if tokenizer is not None else ():
        if positions >= MIN_POSITIONS and len(chosen) >= _LEAST and not model.is_encoder:
            break
        form = "text" if model.is_encoder else usual
        answer = {"answer": _ANSWER} if form == "chat" else {}
        try:
            ids = tokenizer.chat(text) if form == "chat" else tokenizer.encode(text)
        except SourceError:
            continue
        # A vocabulary that lacks the words has one token for all of them.
        spelled = 2 * len(set(ids)) >= len(ids) > 1
        fits = len(ids) <= limit - (_ANSWER if answer else _GREEDY)
        if spelled and fits and max(ids) < (model.vocabulary or math.inf):
            chosen.append(Prompt.model_validate({"name": name, form: text, **answer}))
            positions += len(ids) - 1
    if positions >= MIN_POSITIONS:
        return Prompts(tuple(chosen), positions)
    length, rng = min(_IDS, limit - _GREEDY), np.random.default_rng(_SEED)
    count = max(len(_PROMPTS) if model.is_encoder else 1, -(-MIN_POSITIONS // (length - 1)))
    rows = rng.integers(0, model.vocabulary or 1, (count, length)).tolist()
    prompts = tuple(Prompt(name=f"ids{i}", ids=tuple(row)) for i, row in enumerate(rows))
    return Prompts(prompts, count * (length - 1), why)


def stack_prompts(vocabulary: int, context: int, texts: bool) -> list[dict[str, Any]]:
    """Prompts of a chain of packages: texts where a tokenizer is at hand, else random ids."""
    if texts:
        return [{"name": name, "text": text} for name, form, text in _PROMPTS if form == "text"]
    length, rng = min(_IDS, context - _GREEDY), np.random.default_rng(_SEED)
    rows = rng.integers(0, vocabulary, (-(-MIN_POSITIONS // (length - 1)), length)).tolist()
    return [{"name": f"ids{i}", "ids": row} for i, row in enumerate(rows)]


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

    @property
    def memory(self) -> int:
        """Bytes that building and judging it take."""
        largest = max((weight.elements for weight in self.weights), default=0)
        return _PROCESS + _ELEMENT * self.elements + _LARGEST * largest


@dataclass(frozen=True)
class Described:
    """What a source is called and holds, and how it is cut: all shards, in running order.

    `vocabulary` is how many tokens there are; None where the family tells none.
    """

    path: Path
    family: str
    source: Any
    cut: Cut
    shards: tuple[ShardShapes, ...]
    vocabulary: int | None

    @property
    def has_states(self) -> bool:
        return any(shard.states for shard in self.shards)

    @property
    def is_encoder(self) -> bool:
        return is_encoder(self.family, self.cut.shards)


def describe(table: SourceTable, path: Path) -> Described:
    """Open a source, find its family and cut it into shards; `path` is what it is called.

    `SourceError` where it is missing, broken, of no family or of a variant that its family refuses.
    """
    source: Any = open_source(table)
    if not source.keys:
        raise SourceError(f"{path}: its configuration is empty; fetch it again.")
    name = family_of(source)
    family, trained = get_family(name), _trained(source)
    most = _TEXT if name in ENCODERS else MAX_TOKENS
    described: Described | None = None
    refused: SourceError | None = None
    for context in [c for c in _CONTEXTS if c <= (trained or c)] or _CONTEXTS[-1:]:
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
        described = Described(path, name, source, cut, shards, vocabulary)
        if sum(shard.states for shard in shards) * _STATE_SHARE <= free_memory():
            break
    if described is None:
        assert refused is not None
        raise refused
    # Prompts reach some rows only; other tensors are read whole when they are built.
    rows = range(described.vocabulary or 0)
    for start in rows[:: empty.positions]:
        empty.embed(rows[start : start + empty.positions])
    return described


def slices_of(vocabulary: int) -> int:
    """The fewest slices of a head of at most `MAX_ROWS` whose rows divide best into groups."""
    least = -(-vocabulary // MAX_ROWS)

    def group(slices: int) -> int:
        rows = vocabulary // slices if vocabulary % slices == 0 else 1
        return next((group for group in (*_GROUPS, 2) if rows % group == 0), 1)

    return min(range(least, 2 * least), key=lambda n: (-group(n), n))


def _last(family: Family, vocabulary: object) -> Sequence[str]:
    slices = slices_of(vocabulary) if isinstance(vocabulary, int) else 0
    for ids in ([f"head.{i}" for i in range(slices)], [POOLING]):
        with suppress(ManifestError):
            family.wiring(ids)
            return ids
    return ()


def _trained(source: Source) -> int | None:
    key, said = architecture_of(source.value)
    keys = ["text_config.max_position_embeddings", "max_position_embeddings"]
    for name in [f"{said}.context_length"] if key == "general.architecture" else keys:
        with suppress(SourceError):
            return whole(source.value(name), f"{source.label}: {name}", MAX_DIMENSION)
    return None


class _Shapes:
    """A source whose tensors have their shapes, and each one number in place of all."""

    def __init__(self, source: Any) -> None:
        self._source: Any = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def tensor(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        if self._source.shape(name) != tuple(shape):
            return cast("Array", self._source.tensor(name, shape, dtype))
        return _hollow(tuple(shape), dtype)

    def rows(
        self, name: str, index: Sequence[int], width: int, height: int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:  # fmt: skip
        self._source.rows(name, index[:1], width, height, dtype)
        return _hollow((len(index), width), dtype)


def _hollow(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    return np.lib.stride_tricks.as_strided(np.ones(1, dtype), shape, [0] * len(shape))


def _shapes(family: Family, source: Any, cut: Cut) -> tuple[ShardShapes, ...]:
    model = family.open_model(cast("Source", _Shapes(source)), cut)
    layers: dict[int | None, set[object]] = {}
    for name in source.names:
        number = _LAYER.search(name)
        bare = _LAYER.sub("..", name, count=1), source.shape(name)
        layers.setdefault(int(number[1]) if number else None, set()).add(bare)
    known: dict[Any, ShardShapes] = {}
    shards = []
    for wire in family.wiring(cut.shards):
        number = _SHARD_LAYER.match(wire.shard)
        tensors = frozenset(layers.get(int(number[1]) if number else None, ()))
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
_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
"""Maps before a router. An error of theirs moves its near ties, so that other experts run; they are
a few percent of a mixture: 3 % of Mixtral 8x7B, 4 % of Gemma-4-26B-A4B."""
_KEPT = ("norm", "router", "scale", "order")
"""Words by which families name what is no map."""


@dataclass(frozen=True)
class Scheme:
    """Output channels that share a palette; None for one palette for the whole weight.

    Attributes:
        grouping, head: of most weights, and of the head's slices.
        overrides: of weights whose channels do not divide so, by glob.
        keep: globs of what stays fp16.
    """

    grouping: int | None
    head: int | None
    overrides: Mapping[str, int | None]
    keep: tuple[str, ...]


def choose_compression(shards: Sequence[ShardShapes]) -> Scheme:
    """Palettes of the largest groups that divide most weights, and of other groups for others.

    The converter may fold a head's soft cap into its weight, which then has no name of its own: so
    the head is told by its shards.
    """
    routed = any("router" in weight.name for shard in shards for weight in shard.weights)
    heads: list[Weight] = []
    named: dict[str, list[Weight]] = {}
    kept: set[str] = set()
    for kind, weight in ((shard.kind, weight) for shard in shards for weight in shard.weights):
        if weight.elements <= _THRESHOLD:
            continue
        if not weight.compressible or (routed and weight.name.startswith(_ATTENTION)):
            if len(weight.shape) > 1:
                words = [f"*{word}*" for word in _KEPT if word in weight.name]
                kept.update(words or [_glob(weight.name)])
        elif kind == "head":
            heads.append(weight)
        else:
            named.setdefault(_glob(weight.name), []).append(weight)
    groupings = {name: _common(alike) for name, alike in named.items()}
    elements: Counter[int | None] = Counter()
    for name, grouping in groupings.items():
        elements[grouping] += named[name][0].elements
    main = max(elements, key=lambda grouping: elements[grouping], default=None)
    head = _common(heads) if heads else main
    if not named and heads:
        main = head
    others = {name: own for name, own in sorted(groupings.items()) if own != main}
    return Scheme(main, head, others, tuple(sorted(kept)))


def _common(weights: Iterable[Weight]) -> int | None:
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


_BLOCK, _HEAD, _NORM, _MAP = 17_700, 1_700, 3_250, 500
"""Bytes of a package besides its weights: of a block or a head without its maps and norms, and what
the text of each of these adds. From packages that were built: 27,474 bytes of a Llama's block with
states, 4,858 of a head, 40,120 of Gemma 3's block."""
_ALIGNED = 64
"""What begins at a multiple of so many bytes has as many for its header: a weight, and a table."""
_PROCESS, _ELEMENT, _LARGEST = 600 * 10**6, 10, 44
"""Bytes that building and judging a shard takes: of a process that has loaded torch and
coremltools, for each of a shard's numbers, and for each of its largest weight's, whose palettes are
found at once. The sum is at or above what was measured, by 20 % at most: 675 MB of a block of
SmolLM2-135M, 950 MB of a third of its head, 1.73 GB of a block of 61 million numbers, 2.33 GB of a
head's slice of 34 million."""
_SLACK, _MORE = 1.05, 50_000
"""A budget is so many times what is expected, and bytes more for a longer program."""


@dataclass(frozen=True)
class Size:
    """Bytes of a shard's package, uncompressed and compressed."""

    fp16: int
    compressed: int

    def __str__(self) -> str:
        return f"{bytes_text(self.fp16)} in fp16, {bytes_text(self.compressed)} compressed"


def _size(shard: ShardShapes, asked: Shard) -> Size:
    text = _HEAD if shard.kind == "head" else _BLOCK
    compressed = 0
    for weight in shard.weights:
        text += _ALIGNED + (_NORM if "norm" in weight.name else _MAP)
        settings = asked.requested.for_weight(weight.name, ("conv",))
        small = isinstance(settings, Palettize) and weight.elements <= settings.weight_threshold
        plain = small or len(weight.shape) < 2
        compressed += stored_bytes(weight.shape, Uncompressed() if plain else settings)
    return Size(2 * shard.elements + text, compressed + text)


def _costs(shapes: Sequence[ShardShapes], shards: Sequence[Shard], cache: Path) -> dict[str, Any]:
    sizes = {s.id: _size(s, asked) for s, asked in zip(shapes, shards, strict=True)}
    total = sum(size.compressed for size in sizes.values())
    largest = max(size.fp16 + size.compressed for size in sizes.values())
    folder = next(path for path in (cache, *cache.parents) if path.is_dir())
    heaviest = max(shapes, key=lambda shard: shard.memory)
    return {
        "shards": sizes,
        "states": sum(shard.states for shard in shapes),
        "disk": volumes(folder, temporary_folder(), Estimate(len(sizes), total, largest, total), 1),
        "memory": {"shard": heaviest.id, "build": heaviest.memory, "free": free_memory()},
    }


def _costs_lines(shapes: Sequence[ShardShapes], facts: Mapping[str, Any]) -> Iterator[str]:
    sizes: Mapping[str, Size] = facts["shards"]
    memory, free = facts["memory"], facts["memory"]["free"]
    near = {id: (round(size.fp16, -4), round(size.compressed, -4)) for id, size in sizes.items()}
    for ids in grouped(((s.kind, near[s.id]), s.id) for s in shapes).values():
        yield f"{', '.join(in_ranges(ids))}: {'each ' if len(ids) > 1 else ''}{sizes[ids[0]]}"
    fp16, compressed = (sum(getattr(s, k) for s in sizes.values()) for k in ("fp16", "compressed"))
    held = f"; states of {bytes_text(facts['states'])}" if facts["states"] else ""
    yield f"all {len(sizes)} shards: {Size(fp16, compressed)}{held}"
    yield f"disk: {' · '.join(map(str, facts['disk']))}"
    yield (
        f"memory: about {bytes_text(memory['build'])} to build and judge {memory['shard']}, the "
        f"largest shard; {bytes_text(free)} free"
    )
    smallest = min(shapes, key=lambda shard: sizes[shard.id].fp16).id
    if any((volume.needed or 0) > volume.free for volume in facts["disk"]):
        yield (
            f"the disk will not hold all of it: begin with {smallest}, free some space "
            "(pytest-ane cache prune), or name another folder with --ane-cache=DIR"
        )
    if memory["build"] > free:
        fits = next((shard.id for shard in shapes if shard.memory <= free), "no shard")
        yield (
            f"memory will not suffice for {memory['shard']}: {fits} fits; use a machine with more, "
            "or close other programs"
        )


def _budgets(
    shards: Sequence[ShardShapes], sizes: Mapping[str, Size]
) -> Iterator[tuple[str, str, float | None]]:
    groups = grouped((re.sub(r"\d+", "*", shard.id), shard) for shard in shards)
    for glob, group in groups.items():
        most = {shard.id: int(_SLACK * sizes[shard.id].compressed) + _MORE for shard in group}
        ratio = min(2 * shard.elements / most[shard.id] for shard in group)
        least = math.floor(100 * ratio) / 100
        megabytes = math.ceil(max(most.values()) / 10**4) / 100
        yield glob, f"{megabytes:g}", least if least > 1 else None
