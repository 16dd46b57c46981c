"""Canary shards: which ones `canary = ["L01", "head*"]` names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.ids import as_range, is_glob, nearest
from pytest_ane.manifest.problems import Problem, at_value


def canaries(terms: Sequence[str], ids: Sequence[str]) -> tuple[str, ...]:
    """The shards that ids, ranges and globs name, in the model's order."""
    named = {shard for term in terms for shard in _named(term, ids)}
    return tuple(shard for shard in ids if shard in named)


def canary_problems(here: KeyPath, terms: Sequence[str], ids: Sequence[str]) -> Iterator[Problem]:
    """Terms that name a shard which does not exist, or none."""
    for term in terms:
        missing = next((shard for shard in _named(term, ids) or [term] if shard not in ids), None)
        if missing is not None:
            takes = "matches no shard" if missing == term else f"takes in {missing}, which is none"
            yield at_value((*here, "canary"), term, f"{takes}; {nearest(missing, ids)}")


def _named(term: str, ids: Sequence[str]) -> list[str]:
    if term in ids:
        return [term]
    if is_glob(term):
        return [shard for shard in ids if fnmatchcase(shard, term)]
    return as_range(term) or []
