"""A model's manifest as text, with the comments that a reader wants."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pytest_ane.manifest import Prompt
from pytest_ane.manifest.ids import as_range
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.mlprogram.text import printable
from pytest_ane.models.sources import Tokenizer
from pytest_ane.models.sources.chat_template import TemplateError
from pytest_ane.tools._init_shapes import NBITS, Described, Grouping, Scheme, StoredSource

# Golden prompts to begin with: as many that behaviour judges at least 60 positions.

MIN_POSITIONS = 60
"""Positions that behaviour judges, the first of each prompt left out: one near tie among them is
less than 2 % of top-1."""
_GREEDY = 10
_IDS = 24
"""Tokens of a prompt of random ids."""
_SEED = 20260101

Form = Literal["text", "chat"]
_PROMPTS: tuple[tuple[str, Form, str], ...] = (
    ("facts", "text", "The capital of France is Paris. The Seine runs through the city, and the "
     "Louvre holds the Mona Lisa."),
    ("chat", "chat", "What is the capital of Japan?"),
    ("prose", "text", "Once upon a time, there was a little girl named Lily who loved to play "
     "outside with her friends."),
    ("code", "text", "def add(a, b):\n    return a + b\n\nprint(add(2, 3))"),
    ("question", "chat", "Explain in one sentence why the sky is blue."),
    ("science", "text", "Water boils at 100 degrees Celsius at sea level. At higher altitudes it "
     "boils sooner, because the air is thinner."),
    ("history", "text", "In 1969 two astronauts landed on the Moon, while a third one stayed in "
     "orbit around it."),
)  # fmt: skip
_LEAST = 4
"""Prompts of a model with a tokenizer, of different kinds, though fewer had enough positions."""
_MATRICES, _LEAST_MATRICES = 16, 4
"""Matrices that are looked at, and the fewest that tell."""
_LARGE, _NUMBERS = 1024, 16_384
"""Numbers of a matrix that counts, and how many of it are read, in whole rows."""
_ALIKE = 0.1
"""Share by which a deviation may differ from the median: over four times the chance of `_LARGE`."""


@dataclass(frozen=True)
class Prompts:
    """Golden prompts.

    Attributes:
        positions: that behaviour judges.
        without: why they are random ids; None where a tokenizer makes them of text.
        untrained: whether they are texts, and the model is untrained, to which no text is likely.
        no_chat: why none is a chat message, though there is a chat template.
    """

    prompts: tuple[Prompt, ...]
    positions: int
    without: str | None = None
    untrained: bool = False
    no_chat: str | None = None

    def notes(self) -> Iterator[str]:
        """What is unusual about them, for people."""
        if self.without:
            yield f"the prompts are random ids: {self.without}"
            return
        if self.no_chat:
            yield f"no prompt is a chat message: {self.no_chat}"
        if self.untrained:
            yield (
                "the weights are untrained, for every matrix has the same standard deviation: "
                "shards.toml sets no limit on the reference's perplexity"
            )


def choose(model: Described) -> Prompts:
    """Texts, and messages where there is a chat template; random ids where there is no tokenizer.

    Texts of which the tokenizer lacks something, or which the shards do not take, are left out.
    """
    limit = (model.cut.context if model.has_states else model.cut.max_tokens) - _GREEDY
    try:
        chosen = _spoken(model, model.source.tokenizer, limit)
        why = "its tokenizer makes nothing of the texts that init has"
    except SourceError as error:
        chosen, why = Prompts((), 0), str(error).removeprefix(f"{model.path}: ")
    if chosen.positions >= MIN_POSITIONS:
        untrained = not model.is_encoder and not _is_trained(model.source)
        return replace(chosen, untrained=untrained)
    # An encoder's rank one another.
    least = len(_PROMPTS) if model.is_encoder else 1
    return _random(model.vocabulary or 1, limit, least, why)


def _spoken(model: Described, tokenizer: Tokenizer, limit: int) -> Prompts:
    """An encoder's prompts rank one another, so it has all of them, as texts."""
    chosen: list[Prompt] = []
    positions, no_chat = 0, None
    for name, usual, text in _PROMPTS:
        if positions >= MIN_POSITIONS and len(chosen) >= _LEAST and not model.is_encoder:
            break
        form: Form = "text" if model.is_encoder else usual
        try:
            ids = tokenizer.chat(text) if form == "chat" else tokenizer.encode(text)
        except SourceError as error:
            if isinstance(error.__cause__, TemplateError):
                no_chat = str(error)
            continue
        # A vocabulary that lacks the words has one token for all of them.
        spelled = 2 * len(set(ids)) >= len(ids) > 1
        if spelled and len(ids) <= limit and max(ids) < (model.vocabulary or np.inf):
            chosen.append(Prompt.model_validate({"name": name, form: text}))
            positions += len(ids) - 1
    return Prompts(tuple(chosen), positions, no_chat=no_chat)


def _random(vocabulary: int, limit: int, least: int, why: str) -> Prompts:
    length = min(_IDS, limit)
    rng = np.random.default_rng(_SEED)

    def drawn() -> Iterator[Prompt]:
        for i in range(max(least, -(-MIN_POSITIONS // (length - 1)))):
            ids = rng.integers(0, vocabulary, length).tolist()
            yield Prompt(name=f"ids{i}", ids=tuple(ids))

    prompts = tuple(drawn())
    return Prompts(prompts, len(prompts) * (length - 1), why)


def _is_trained(source: StoredSource) -> bool:
    """Whether the deviations of some matrices differ, or too few matrices are there to tell.

    transformers draws all matrices with one standard deviation, `initializer_range`. Training gives
    each a deviation of its own: those of SmolLM2-135M lie between 0.63 and 2.2 of their median,
    those of MiniLM between 0.14 and 1.4. Of untrained models of all families, each is within 4 % of
    it.
    """
    shapes = {name: source.shape(name) for name in sorted(source.names)}
    names = [n for n, shape in shapes.items() if len(shape) == 2 and math.prod(shape) >= _LARGE]
    chosen = names[:: -(-len(names) // _MATRICES) or 1]
    deviations = []
    for name in chosen:
        height, width = shapes[name]
        count = min(height, -(-_NUMBERS // width))
        first = (height - count) // 2  # The row of a padding token is zero, and is often the first.
        with suppress(SourceError), np.errstate(all="ignore"):
            rows = source.rows(name, range(first, first + count), width, height)
            deviations.append(float(np.std(rows)))
    if len(deviations) < _LEAST_MATRICES:
        return True
    middle = float(np.median(deviations))
    return any(not abs(each - middle) <= _ALIKE * middle for each in deviations)


# A model's manifest as text, with the comments that a reader wants.

_LONGEST = 64
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@dataclass(frozen=True)
class Budget:
    """Limits of shards that are alike: a glob of their ids, bytes, and the least ratio to fp16."""

    glob: str
    max_bytes: int
    min_ratio: float | None


def manifest_text(
    model: Described,
    where: str,
    scheme: Scheme,
    prompts: Prompts,
    budgets: Iterable[Budget],
) -> str:
    """The text of `shards.toml`.

    Args:
        model: what the source holds.
        where: the source as the manifest has it.
        scheme: the compression.
        prompts: the golden prompts.
        budgets: the size limits.
    """
    name = model_name(model.path)
    parts = (
        _head(model, name, where),
        _compression(model, name, scheme, budgets),
        _policies(model, name, prompts),
        _prompts(model, name, prompts),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def model_name(path: Path) -> str:
    """A model's name in the manifest, of its file's or folder's."""
    stem = path.stem if path.suffix in (".gguf", ".safetensors", ".json") else path.name
    generic = (stem.startswith("model") and path.is_file()) or (stem == "model" and path.is_dir())
    stem = path.absolute().parent.name if generic else stem
    name = re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")
    return name[:_LONGEST].rstrip("-_") or "model"


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


def quoted(text: str) -> str:
    """A TOML string.

    Raises:
        ManifestError: a character that no TOML file can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ManifestError(
            f"{printable(text)}: its name is no valid text, which shards.toml could not hold; "
            "rename it."
        ) from None
    escaped = (_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{"".join(escaped)}"'


def _head(model: Described, name: str, where: str) -> Iterator[str]:
    cut, first = model.cut, model.cut.shards[0]
    yield f"# {printable(model.path.name)}, by pytest-ane init --from."
    yield "#     pytest --co -q --ane-shards=all -m gate    check this file"
    yield f"#     pytest --ane-shards={first} -m gate          one shard"
    yield "#     pytest --ane-shards=all -m gate          all, and the whole model's behaviour"
    yield "# Every key is explained in pytest-ane's docs/reference/manifest.md."
    yield ""
    yield f"[models.{name}]"
    yield f'family = "{model.family}"'
    yield f"source = {where}"
    if model.heads and model.vocabulary:
        slices = "1 slice" if model.heads == 1 else f"{model.heads} slices"
        yield f"# The last are the head: {model.vocabulary:,} tokens in {slices}."
    yield f"shards = {quoted(ranges(cut.shards))}"
    yield f"# A call takes 1 to {cut.max_tokens} positions."
    yield f"max-tokens = {cut.max_tokens}"
    if model.has_states:
        trained = f" (it was trained for {model.trained:,})" if model.trained else ""
        yield f"# Keys and values of so many positions are kept in states{trained}. Probes fill"
        yield "# them to the end, so more take longer to judge."
        yield "stateful = true"
        yield f"context = {cut.context}"
    yield "# Judged as the program's types say. In the ANE's own arithmetic, simulated, too:"
    yield '# arithmetic = ["typed", "ane"]'


def _compression(
    model: Described, name: str, scheme: Scheme, budgets: Iterable[Budget]
) -> Iterator[str]:
    yield ""
    yield "# To begin with: half of the bytes of fp16, hardly an error."
    if not model.is_encoder:
        yield f"# This finds a smaller one: pytest-ane recommend {name}"
    yield f"[models.{name}.compression]"
    yield 'method = "palettize"'
    yield 'mode = "kmeans"'
    yield f"nbits = {NBITS}"
    yield from _settings(scheme.grouping)
    if scheme.keep:
        yield "# What stays fp16: it is small, and an error in it changes much."
        yield f"keep = [{', '.join(map(quoted, scheme.keep))}]"
    if scheme.overrides:
        yield "# Weights whose output channels do not divide into such groups."
        yield "overrides = ["
        for glob, grouping in scheme.overrides.items():
            yield f"    {{ weights = {quoted(glob)}, {', '.join(_settings(grouping))} }},"
        yield "]"
    for shard in model.shards:
        if not shard.elements:
            yield ""
            yield f"[models.{name}.shard.{quoted(shard.id)}]"
            yield 'compression = { method = "none" }  # it has no weights'
    if model.heads and scheme.head != scheme.grouping:
        yield ""
        yield f'[models.{name}.shard."head.*".compression]'
        yield from _settings(scheme.head)
    for budget in budgets:
        yield ""
        yield f'[models.{name}.shard."{budget.glob}".policy.compression]'
        yield f'max-bytes = "{_megabytes(budget.max_bytes)} MB"'
        if budget.min_ratio:
            yield f"min-ratio = {budget.min_ratio:g}"


def _settings(grouping: Grouping) -> Iterator[str]:
    if grouping is None:
        yield 'granularity = "per_tensor"'
    else:
        yield 'granularity = "per_grouped_channel"'
        yield f"group_size = {grouping}"


def _megabytes(size: int) -> str:
    """Rounded up to three digits."""
    digits = max(0, 3 - len(str(size // 10**6)))
    scale = 10 ** (6 - digits)
    return f"{-(-size // scale) / 10**digits:.{digits}f}"


def _policies(model: Described, name: str, prompts: Prompts) -> Iterator[str]:
    kinds = ["gaussian", "outlier", "captured"]
    # What enters an encoder's blocks is normed, and it keeps no states.
    kinds += [] if model.is_encoder else ["massive", "ragged", "rewrite"]
    yield f"""
# Seeded inputs, the golden prompts' own hidden states, and sequences that reach a state's ends.
[models.{name}.probes]
kinds = [{", ".join(map(quoted, kinds))}]
count = 2
seed = 20260101

[models.{name}.policy.fidelity]
min-cosine = 0.97
"""
    yield from _whole(model, name, prompts)
    yield f"""
# Accept only what Core ML itself said on a Mac; pytest --ane-record keeps it:
# [models.{name}.policy.placement]
# require = "plan"
"""


def _whole(model: Described, name: str, prompts: Prompts) -> Iterator[str]:
    """The policy of the whole model's behaviour."""
    table = f"[models.{name}.policy.behaviour]"
    if model.is_encoder:
        yield "# Of the whole model: embeddings of the prompts below, and how each ranks others."
        yield from (table, "min-embedding-cosine = 0.98", "min-kendall = 0.9")
        yield "min-top1 = 0.9"
        return
    yield f"# Of the whole model: {prompts.positions} positions of the prompts below are judged."
    yield from (table, "min-top1 = 0.9", "max-kl = 0.05", "min-centred-cosine = 0.9")
    yield "min-greedy = 10"
    if prompts.without:
        yield "# No model finds random ids likely, so the reference's perplexity may be anything."
    elif prompts.untrained:
        yield "# An untrained model finds no text likely. Once it is trained, remove this line:"
    if prompts.without or prompts.untrained:
        yield "max-reference-perplexity = 1e300"


def _prompts(model: Described, name: str, prompts: Prompts) -> Iterator[str]:
    if prompts.without:
        yield "# Random token ids, as no text could be made tokens here:"
        yield f"# {printable(prompts.without)}"
        yield "# Better are ids of real text, or a tokenizer and text."
    elif model.is_encoder:
        yield '# A list of sentences of your own to rank: sentences = "sentences.txt", above.'
    else:
        yield '# With expect = "Paris" a prompt asks whether the reference itself is right.'
    for i, prompt in enumerate(prompts.prompts):
        if i:
            yield ""
        yield f"[[models.{name}.prompts]]"
        yield f'name = "{prompt.name}"'
        if prompt.ids is not None:
            yield f"ids = {list(prompt.ids)}"
        elif prompt.chat is not None:
            yield f"chat = {quoted(prompt.chat)}"
        else:
            yield f"text = {quoted(prompt.text or '')}"
