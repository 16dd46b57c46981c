"""`pytest-ane init --from`: a manifest of a model that somebody has, right the first time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from pytest_ane.make.cache import default_root
from pytest_ane.manifest import Prompt, SourceTable, parse
from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.mlprogram.text import printable
from pytest_ane.models.sources import Tokenizer, source_path
from pytest_ane.models.sources.chat_template import TemplateError
from pytest_ane.models.sources.files import OnlyGGUFError, locate_snapshot
from pytest_ane.tools._init_shapes import (
    NBITS,
    Described,
    StoredSource,
    budgets,
    choose_compression,
    describe,
    measure,
    ranges,
)
from pytest_ane.tools._init_text import Made, quoted, render

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w./-]+\.gguf))?")
"""A repository, `@` a branch, tag or commit, and a file, as in the paths of `HfFileSystem`:
https://huggingface.co/docs/huggingface_hub/guides/hf_file_system."""
_NAME_ONE = (
    "name a folder of safetensors with its config.json, a GGUF file, or a repository of the "
    "Hugging Face cache, as Qwen/Qwen3-0.6B."
)


def scaffold(source: str, manifest: Path, cache: Path | None = None) -> Made:
    """A manifest of a model; nothing is written.

    `source` is a folder or file of safetensors, a GGUF file, or a repository of the local Hugging
    Face cache: `Qwen/Qwen3-0.6B`, at another revision than `main` `Qwen/Qwen3-0.6B@v2`, or a file
    of one, `ggml-org/gemma-3-270m-GGUF/gemma-3-270m-Q8_0.gguf`.

    Raises:
        SourceError: the source is missing, broken, of no family of ours, or of a variant that its
            family refuses.
        ManifestError: the source's name cannot stand in a manifest.
    """
    table, name = _find(source)
    where = _toml(table, manifest.parent)
    model = describe(table, name)
    golden = choose_prompts(model)
    scheme = choose_compression(model.shards)
    text = partial(
        render, "model.toml.jinja", model=model, name=model_name(model.path), where=where,
        scheme=scheme, prompts=golden, nbits=NBITS, ranges=ranges(model.cut.shards),
    )  # fmt: skip
    # The limits follow from sizes, and these from the compression as the manifest has it.
    unlimited = parse(text(limits=()), manifest).models[0]
    facts, sizes = measure(model.shards, unlimited, cache or default_root())
    limits = budgets(model.shards, facts["shards"])
    limited = text(limits=[(glob, _megabytes(most), ratio) for glob, most, ratio in limits])
    parse(limited, manifest)
    texts, positions, notes = len(golden.prompts), golden.positions, tuple(golden.notes())
    judged = f"{texts} texts" if model.is_encoder else f"{positions} positions"
    shards = model.cut.shards
    lines = (
        f"family {model.family}, {len(shards)} shards; behaviour judges {judged}",
        *notes,
        *sizes,
        f"next: pytest --ane-shards={shards[0]} -m gate",
        "then: pytest --ane-shards=all -m gate",
    )
    about = {"family": model.family, "positions": positions, "notes": notes}
    return Made(limited, lines, about | facts)


def _find(source: str) -> tuple[SourceTable, Path]:
    """Where the model that somebody names is, and the file or folder by its own name.

    A repository is pinned to the commit that the cache has.
    """
    path = Path(source).expanduser()
    try:
        there = path.exists()
    except (OSError, ValueError):  # Too long a name, or a NUL in it.
        there = False
    if not source:
        raise SourceError(f"--from names nothing; {_NAME_ONE}")
    if there:
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
    """A source as the manifest has it: a path is relative where it is below the folder."""
    file, folder = source_path(table), folder.absolute()
    keys = table.model_dump(include={"hub", "file"}, exclude_none=True)
    if table.path is not None:
        path = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)
        # No manifest may say ".", which is what an empty path is.
        keys = {"path": f"../{folder.resolve().name}" if path == "." else path}
    if file.is_file() and file.suffix != ".json":
        keys["sha256"] = file_digest(file)
    return f"{{ {', '.join(f'{key} = {quoted(value)}' for key, value in keys.items())} }}"


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
    """Golden prompts, and how many positions of them behaviour judges.

    Attributes:
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


def choose_prompts(model: Described) -> Prompts:
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
    length, rng = min(_IDS, limit), np.random.default_rng(_SEED)
    count = max(least, -(-MIN_POSITIONS // (length - 1)))
    ids = rng.integers(0, vocabulary, (count, length)).tolist()
    prompts = tuple(Prompt(name=f"ids{i}", ids=tuple(row)) for i, row in enumerate(ids))
    return Prompts(prompts, count * (length - 1), why)


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


_LONGEST = 64


def model_name(path: Path) -> str:
    """A model's name in the manifest, of its file's or folder's."""
    stem = path.stem if path.suffix in (".gguf", ".safetensors", ".json") else path.name
    generic = (stem.startswith("model") and path.is_file()) or (stem == "model" and path.is_dir())
    stem = path.absolute().parent.name if generic else stem
    name = re.sub(r"[^a-z0-9_]+", "-", stem.lower()).strip("-_")
    return name[:_LONGEST].rstrip("-_") or "model"


def _megabytes(size: int) -> str:
    """Rounded up to three digits."""
    digits = max(0, 3 - len(str(size // 10**6)))
    scale = 10 ** (6 - digits)
    return f"{-(-size // scale) / 10**digits:.{digits}f}"
