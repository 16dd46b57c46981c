"""Which shard alone, on the reference's own states, has an error that stands out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from pytest_ane.gates.verdict import Column, Finding, Table, Where, rounded
from pytest_ane.probes.exact_chain import ShardAlone, StackState

_STANDS_OUT = 2.5
"""Times the median error of the other shards of its kind, from which a shard alone is named. Shards
of one kind and one compression differ less: the largest of the default model has 1.24."""

_HALF = 0.5
"""Relative L2 of a shard alone that no compression costs which is of any use."""


def worst_first(shards: Sequence[ShardAlone]) -> list[ShardAlone]:
    """The largest relative L2 first; an undefined one is worse than any number."""
    return sorted(shards, key=lambda a: -math.inf if a.undefined else -a.error)


def outstanding(shards: Sequence[ShardAlone]) -> ShardAlone | None:
    """The worst shard, if it stands out; an undefined one does.

    Compression gives every shard an error, so the largest of them proves nothing. One stands out
    that has several times the median of the others of its kind (of all, if it is the only one),
    and no less than the median of all. So does one that loses half of what it contributes, where
    most shards lose far less: all of its kind may have one fault.
    """
    usual = statistics.median([a.error for a in shards if not a.undefined] or [0.0])
    for alone in worst_first(shards):
        if alone.undefined:
            return alone
        median = _median(shards, alone)
        if median is not None and alone.error and alone.error >= max(usual, _STANDS_OUT * median):
            return alone
        if alone.error >= max(_HALF, _STANDS_OUT * usual):
            return alone
    return None


def _median(shards: Sequence[ShardAlone], alone: ShardAlone) -> float | None:
    """Median error of the other shards of its kind, else of all others; None without any."""
    others = [a for a in shards if a is not alone and not a.undefined]
    alike = [a.error for a in others if a.kind == alone.kind] or [a.error for a in others]
    return statistics.median(alike) if alike else None


def note(shards: Sequence[ShardAlone]) -> Iterator[Finding]:
    where = "on the reference's own states"
    if (alone := outstanding(shards)) is not None:
        median = _median(shards, alone)
        usual = "" if median is None else f", the median of its kind {median:.4g}"
        how = f"relative L2 {alone.error:.4g}{usual}"
        how = "gives NaN or only zeros" if alone.undefined else how
        reason = f"The worst shard {where} is {alone.shard} ({how})"
        yield Finding("note", reason, Where(shard=alone.shard))
    elif shards:
        times = f"none has {_STANDS_OUT:g} times the median error of its kind"
        remedy = "pytest-ane bisect names the fewest that are to blame together"
        yield Finding("note", f"No single shard stands out {where}: {times}", remedy=remedy)


def table(shards: Sequence[ShardAlone]) -> Table:
    columns = tuple(map(Column, ("shard", "relative L2", "median of its kind", "lowest cosine")))
    rows = tuple((a.shard, a.error, _median(shards, a), a.cosine) for a in worst_first(shards))
    return Table("shards alone, on the reference's own states", columns, rows, "alone")


def drift_table(states: Sequence[StackState], shards: Sequence[ShardAlone]) -> Table:
    """Hidden states of the stack in running order, beside the error of each shard alone."""
    own = {alone.shard: rounded(alone.error) for alone in shards}
    columns = tuple(map(Column, ("shard", "relative L2", "lowest cosine", "own")))
    rows = tuple((s.shard, rounded(s.error), rounded(s.cosine), own.get(s.shard)) for s in states)
    title = "hidden states of the stack, against the reference's"
    return Table(title, columns, rows, "drift", listed=False)
