"""What an encoder's model may say, and the sentences that its prompts rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.problems import Problem, at_key, at_value
from pytest_ane.manifest.records import Prompt
from pytest_ane.manifest.tables import ENCODERS, FAMILIES, ModelTable

_FEWEST, _MOST = 3, 1000
_LONGEST = 1 << 20


def encoder_problems(here: KeyPath, model: ModelTable) -> Iterator[Problem]:
    """Keys of decoders in an encoder's model, and the other way round."""
    if model.family not in ENCODERS:
        if model.sentences is not None and (model.family is None or model.family in FAMILIES):
            named = " or ".join(map(repr, ENCODERS))
            yield at_key((*here, "sentences"), f"'sentences' needs an encoder: family {named}")
        return
    if model.stateful:
        yield at_key((*here, "stateful"), "'stateful' is for decoders; an encoder keeps no states")
    for index, prompt in enumerate(model.prompts):
        at = (*here, "prompts", index)
        if prompt.greedy and "greedy" in prompt.model_fields_set:
            message = "must be left out, or 0: an encoder continues no text"
            yield at_value((*at, "greedy"), prompt.greedy, message)
        if prompt.chat is not None:
            yield at_key((*at, "chat"), "'chat' is for decoders; give an encoder's prompt as text")


def prompts_of(model: ModelTable) -> tuple[Prompt, ...]:
    """A model's prompts; an encoder continues none."""
    if model.family not in ENCODERS:
        return model.prompts
    return tuple(prompt.model_copy(update={"greedy": 0}) for prompt in model.prompts)


def read_sentences(
    here: KeyPath, model: ModelTable, folder: Path
) -> tuple[tuple[str, ...], list[Problem]]:
    """The lines of the file that `sentences` names, or what is wrong with it.

    Args:
        here: the model's table.
        model: as the user wrote it.
        folder: of the manifest.
    """
    if model.sentences is None:
        return (), []
    path, key = folder / model.sentences.expanduser(), (*here, "sentences")

    def wrong(message: str) -> tuple[tuple[str, ...], list[Problem]]:
        return (), [at_value(key, str(model.sentences), message)]

    try:
        if path.stat().st_size > _LONGEST:
            return wrong(f"{path} is longer than 1 MiB; name a short list of sentences")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        return wrong(f"{path} cannot be read as UTF-8 text ({why}); put a sentence a line there")
    sentences = tuple(line.strip() for line in lines if line.strip())
    if not _FEWEST <= len(sentences) <= _MOST:
        message = f"{path} has {len(sentences)} sentences; give {_FEWEST} to {_MOST:,}"
        return wrong(f"{message}, one a line")
    taken = {prompt.name for prompt in model.prompts}
    for number, sentence in enumerate(sentences):
        if sentence in sentences[:number] or sentence in taken:
            return wrong(f"{path} has {sentence!r:.60} twice, or as a prompt's name; leave one")
    return sentences, []
