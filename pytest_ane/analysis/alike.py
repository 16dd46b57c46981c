"""Which shards of a model cost the same, and one of each to count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pytest_ane.analysis.bound import Group
from pytest_ane.analysis.costs import Costs, count_costs
from pytest_ane.analysis.costs.flexible import largest
from pytest_ane.manifest import Shard
from pytest_ane.mil import read_model


@dataclass(frozen=True)
class Alike:
    """Shards whose programs have the same operations on the same shapes.

    Attributes:
        kind: of their wires.
        shards: in running order.
    """

    kind: str
    shards: tuple[Shard, ...]


def alike(
    shards: Sequence[Shard], kind: Callable[[Shard], str], layout: Callable[[Shard], object]
) -> tuple[Alike, ...]:
    """Shards of one kind, one compression and one layout together; packages of one's own alone.

    Args:
        shards: in running order.
        kind: a shard's kind.
        layout: what enters and leaves it, compared by its text.
    """
    found: dict[object, list[Shard]] = {}
    for shard in shards:
        sizes = (shard.max_tokens, shard.context, shard.target)
        asked = shard.requested.model_dump_json()
        built = (kind(shard), asked, sizes, repr(layout(shard)))
        found.setdefault(shard.id if shard.artifact else built, []).append(shard)
    return tuple(Alike(kind(group[0]), tuple(group)) for group in found.values())


def counted(
    one: Alike, built: Callable[[Shard], Path | None], build: Callable[[Shard], Path]
) -> list[Group]:
    """Every shard that is built counts for itself; one counts for those that are not.

    That is one in the middle, for the first and the last of a model may differ: a built one, or
    where none is, one that is built now.
    """
    paths = {shard.id: path for shard in one.shards if (path := built(shard)) is not None}
    middle = len(one.shards) // 2
    if not paths:
        shard = one.shards[middle]
        return [Group(one.kind, shard.id, len(one.shards), costs_of(build(shard)))]
    order = [i for i, shard in enumerate(one.shards) if shard.id in paths]
    chosen = one.shards[min(order, key=lambda i: abs(i - middle))].id
    others = len(one.shards) - len(paths)
    return [
        Group(one.kind, name, 1 + (others if name == chosen else 0), costs_of(path))
        for name, path in paths.items()
    ]


def costs_of(package: Path) -> Callable[[int], Costs]:
    """Costs of a package by T.

    Raises:
        ProgramError: when called, where it cannot be read.
    """

    @lru_cache
    def at(tokens: int) -> Costs:
        return count_costs(read_model(package, weights=False), tokens)

    return at


def largest_of(package: Path, most: int) -> int:
    """The largest T that a package takes, up to `most`; 1 where its shapes are fixed.

    Raises:
        ProgramError: it cannot be read.
    """
    return largest(read_model(package, weights=False), most)
