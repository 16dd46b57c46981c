"""Selection of shards: `L01`, `L00-L04,head*`, `smollm2:*`, `sample:5`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from random import Random

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.ids import ALL, as_range, is_glob, nearest, without_function
from pytest_ane.manifest.problems import Problem, at_value, label
from pytest_ane.manifest.records import Manifest, Shard
from pytest_ane.mlprogram.errors import ManifestError

_SAMPLE = "sample"


def select(manifest: Manifest, expression: str, option: str = "--ane-shards") -> tuple[Shard, ...]:
    """Shards that a selection names, in the manifest's order, each once.

    Terms are separated by commas: `all`, an id, a range, a glob, or `sample:N`, a seeded and
    evenly spread sample with first and last included. Each may follow `model:`; without it, a term
    speaks of the shards of all models.

    Raises:
        ManifestError: nothing is named, or a term matches no shard; the sentence names `option`.
    """
    terms = [term for term in (term.strip() for term in expression.split(",")) if term]
    if not terms:
        raise ManifestError(f"{option} is empty; name shards such as L01, or 'all'.")
    chosen = {shard.qualified for term in terms for shard in _matching(manifest, term, option)}
    return tuple(shard for shard in manifest.shards if shard.qualified in chosen)


def _matching(manifest: Manifest, term: str, option: str) -> Sequence[Shard]:
    name, colon, text = term.partition(":")
    names = [model.name for model in manifest.models]
    if not colon or (name == _SAMPLE and (text.isdecimal() or name not in names)):
        return _in_pool(manifest.shards, term, term, option)
    if name not in names:
        raise ManifestError(
            f"{option}: {label(manifest.path)} has no model {name!r}; {nearest(name, names)}."
        )
    return _in_pool(manifest.model_of(name).shards, text.strip(), term, option)


def _in_pool(pool: Sequence[Shard], text: str, term: str, option: str) -> Sequence[Shard]:
    if text in (ALL, "*"):
        return pool
    if text.startswith(f"{_SAMPLE}:"):
        return _sample(pool, text.partition(":")[2].strip(), term, option)
    ids = [shard.id for shard in pool]
    try:
        fault = _fault(text, ids)
    except ValueError as error:
        raise ManifestError(f"{option}: {error}.") from None
    if fault is not None:
        raise ManifestError(f"{option}: {term!r} {fault}.")
    named = set(_named(text, ids))
    return [shard for shard in pool if shard.id in named]


def _sample(pool: Sequence[Shard], number: str, term: str, option: str) -> Sequence[Shard]:
    """First, last, and one from each of equal stretches between them.

    A fixed stride would meet only one kind of layer where kinds alternate, so the place within a
    stretch is drawn; the seed makes it the same place each time.
    """
    if not number.isdecimal() or (count := int(number)) < 1:
        raise ManifestError(f"{option}: {term!r} needs a number of shards, as in 'sample:5'.")
    if count == 1 or count >= len(pool):
        return pool[:1] if count == 1 else pool
    draw, inner, stretches = Random(f"{count} of {len(pool)}"), len(pool) - 2, count - 2
    bounds = [1 + inner * i // max(stretches, 1) for i in range(stretches + 1)]
    middle = [draw.randrange(*bounds[i : i + 2]) for i in range(stretches)]
    return [pool[0], *(pool[i] for i in middle), pool[-1]]


def canaries(terms: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """The shards that ids, ranges and globs name, in the model's order."""
    named = {shard for term in terms for shard in _named(term, ids)}
    return tuple(shard for shard in ids if shard in named)


def canary_problems(here: KeyPath, terms: Sequence[str], ids: Sequence[str]) -> Iterator[Problem]:
    """Terms that name a shard which does not exist, or none."""
    for term in terms:
        if fault := _fault(term, ids):
            yield at_value((*here, "canary"), term, fault)


def _fault(term: str, ids: Sequence[str]) -> str | None:
    """What is wrong with a term that names no shard, or one that does not exist."""
    missing = next((shard for shard in _named(term, ids) or [term] if shard not in ids), None)
    if missing is None:
        return None
    fault = "matches no shard" if missing == term else f"takes in {missing}, which does not exist"
    return f"{fault}; {nearest(missing, ids)}"


def _named(term: str, ids: Sequence[str]) -> list[str]:
    """The ids that an id, a glob or a range names; those of a range may not exist.

    A shard's id names all functions of its package. In a glob, brackets at the end are a function,
    `*[verify*]`, and only where none has such a name a set of characters, `L0[12]`.
    """
    if term in ids:
        return [term]
    functions: dict[str, list[str]] = {}
    for shard in ids:
        functions.setdefault(without_function(shard)[0], []).append(shard)
    if is_glob(term):
        return [id for id in ids if _matches(without_function(id), without_function(term))] or [
            id for shard in functions if fnmatchcase(shard, term) for id in functions[shard]
        ]
    names = [term] if term in functions else as_range(term) or []
    return [id for shard in names for id in functions.get(shard, [shard])]


def _matches(id: tuple[str, str], glob: tuple[str, str]) -> bool:
    """Whether a glob for a function of a package matches one."""
    return bool(glob[1]) and all(map(fnmatchcase, id, glob))
