"""Golden prompts to begin with: as many that behaviour judges at least 60 positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pytest_ane.manifest import Prompt
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import Tokenizer
from pytest_ane.models.sources.chat_template import TemplateError
from pytest_ane.tools._scaffold.shapes import Described, StoredSource

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
