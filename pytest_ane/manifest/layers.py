"""Merges defaults, model and shard tables, and tracks which table set each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pytest_ane.manifest.base import KeyPath, Table


@dataclass(frozen=True)
class Layers:
    """Tables of the file with the paths they stand at, the lowest first."""

    stack: tuple[tuple[KeyPath, Table], ...]

    def over(self, path: KeyPath, table: Table) -> Layers:
        """These layers with one more on top."""
        return Layers((*self.stack, (path, table)))

    def merged(self) -> Table:
        """One table: nearer keys win, lists replace, as does another `method` or `kind`."""
        return reduce(_laid_over, (table for _, table in self.stack), {})

    def origin(self, path: KeyPath) -> KeyPath:
        """Where in the file a key of the merged table was written.

        A key that no layer has belongs to the nearest layer that has the longest part of it.
        """
        best = max(reversed(self.stack), key=lambda layer: depth(layer[1], path))
        return (*best[0], *path)


def depth(table: Any, path: Sequence[str | int]) -> int:
    """How many parts of a path lead somewhere in a table."""
    for count, part in enumerate(path):
        if not _leads(table, part):
            return count
        table = table[part]
    return len(path)


def value_at(table: Any, path: Sequence[str | int]) -> Any:
    """What a path leads to; `None` where it leads nowhere."""
    for part in path:
        if not _leads(table, part):
            return None
        table = table[part]
    return table


def written(table: Any, location: Sequence[str | int]) -> KeyPath:
    """A pydantic location without the parts that are no keys, such as branches of a union."""
    path: list[str | int] = []
    for part in location:
        if _leads(table, part):
            path.append(part)
            table = table[part]
    return tuple(path)


def without(table: Any, keys: Sequence[str]) -> Any:
    """A table without some of its keys; anything else as it is."""
    if not isinstance(table, dict):
        return table
    return {key: value for key, value in table.items() if key not in keys}


def only(table: Any, keys: Sequence[str]) -> Table:
    """Some keys of a table; nothing of anything else."""
    if not isinstance(table, dict):
        return {}
    return {key: value for key, value in table.items() if key in keys}


def _laid_over(below: Table, above: Mapping[str, Any]) -> Table:
    result = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _replaces(value, old):
            result[key] = _laid_over(old, value)
        else:
            result[key] = value
    return result


def _replaces(above: Table, below: Table) -> bool:
    return any(key in above and above[key] != below.get(key) for key in ("method", "kind"))


def _leads(table: Any, part: str | int) -> bool:
    if isinstance(table, dict):
        return part in table
    return isinstance(table, list) and isinstance(part, int) and part < len(table)
