"""Selection of shards: `L01`, `L00-L04,head*`, `smollm2:all`, `sample:5`."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from random import Random

from pytest_ane.errors import ManifestError
from pytest_ane.manifest.ids import expand
from pytest_ane.manifest.records import Manifest, Shard


def select(manifest: Manifest, expression: str) -> tuple[Shard, ...]:
    """Shards that a selection names, in the manifest's order, each once.

    Terms are separated by commas: `all`, an id, a range, a glob, or `sample:N` (evenly spread,
    first and last included); each may follow `model:`.

    Raises:
        ManifestError: nothing is named, or a term matches no shard.
    """
    terms = [term for term in (t.strip() for t in expression.split(",")) if term]
    if not terms:
        raise ManifestError("--ane-shards is empty; name shards, such as L01, or all.")
    chosen = {shard.qualified for term in terms for shard in _matching(manifest, term)}
    return tuple(shard for shard in manifest.shards if shard.qualified in chosen)


def _matching(manifest: Manifest, term: str) -> list[Shard]:
    model, colon, rest = term.partition(":")
    if colon and model != "sample":
        if model not in (names := [m.name for m in manifest.models]):
            raise ManifestError(
                f"--ane-shards: no model {model!r} in {manifest.path}; there is: {', '.join(names)}."
            )
        pool: Sequence[Shard] = manifest.model_of(model).shards
    else:
        pool, rest = manifest.shards, term
    found = _in_pool(pool, rest, term)
    if not found:
        raise ManifestError(f"--ane-shards: {term!r} matches no shard{_nearest(pool, rest)}.")
    return found


def _in_pool(pool: Sequence[Shard], text: str, term: str) -> list[Shard]:
    if text in ("all", "*"):
        return list(pool)
    if text.startswith("sample:"):
        return _sample(pool, text.removeprefix("sample:"), term)
    if any(c in text for c in "*?["):
        return [shard for shard in pool if fnmatchcase(shard.id, text)]
    exact = [shard for shard in pool if shard.id == text]
    if exact:
        return exact
    try:
        ids = set(expand(text))
    except ValueError as error:
        raise ManifestError(f"--ane-shards: {error}.") from None
    found = [shard for shard in pool if shard.id in ids]
    if found and (missing := sorted(ids - {shard.id for shard in found})):
        raise ManifestError(
            f"--ane-shards: {term!r} names {missing[0]}, which does not exist"
            f"{_nearest(pool, missing[0])}."
        )
    return found


def _sample(pool: Sequence[Shard], number: str, term: str) -> list[Shard]:
    if not number.isdecimal() or int(number) < 1:
        raise ManifestError(f"--ane-shards: {term!r}: give a number of shards, such as sample:5.")
    count = min(int(number), len(pool))
    if count == 1:
        return [pool[0]]
    inner = len(pool) - 2
    # One from each of equal stretches between first and last; the seed makes it the same each time.
    draw = Random(f"{count} of {len(pool)}")
    bounds = [1 + inner * i // max(count - 2, 1) for i in range(count - 1)]
    middle = [draw.randrange(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    return [pool[0], *(pool[i] for i in middle), pool[-1]]


def _nearest(pool: Sequence[Shard], text: str) -> str:
    ids = list(dict.fromkeys(shard.id for shard in pool))
    close = get_close_matches(text, ids, n=3, cutoff=0.4)
    return f"; nearest: {', '.join(close)}" if close else f"; there are: {', '.join(ids[:6])}..."
