"""The house in numbers, from its imports: `python -m tests.house`.

A room is a package of `pytest_ane`. Its inner modules begin with an underscore, or lie in a folder
that does; an import of one from another room goes past a door. An arrow is a pair of rooms of which
one imports the other. That no arrow runs back up is import-linter's to say (`make lint`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = "pytest_ane"


class Import(NamedTuple):
    """A module and one that it imports, by their names below the product."""

    user: str
    used: str

    @property
    def rooms(self) -> tuple[str, str]:
        return self.user.partition(".")[0], self.used.partition(".")[0]


@cache
def modules() -> dict[str, Path]:
    """The product's modules by their names below it."""
    return {_name(path): path for path in sorted((ROOT / PRODUCT).rglob("*.py"))}


@cache
def imports() -> tuple[Import, ...]:
    """Imports of one room by another."""
    found = {Import(user, used) for user, path in modules().items() for used in _imported(path)}
    return tuple(sorted(i for i in found if len({*i.rooms, ""}) == 3))


def past_a_door() -> list[Import]:
    """Imports of a room's inner modules, or of a private name, from another room."""
    return [i for i in imports() if any(part.startswith("_") for part in i.used.split("."))]


def table() -> Iterator[str]:
    """A line a room: its files, lines and doors; then all together."""
    rooms = sorted({name.partition(".")[0] for name in modules()} - {""})
    for room in rooms:
        files = [path for name, path in modules().items() if name.partition(".")[0] == room]
        doors = {i.used for i in imports() if i.rooms[1] == room and i.used in modules()}
        yield f"{room:<10} {len(files):>3} files {lines(files):>6} lines {len(doors):>3} doors"
    arrows = {i.rooms for i in imports()}
    tests = list((ROOT / "tests").rglob("*.py"))
    yield (
        f"{len(rooms)} rooms, {len(modules())} files, {lines(modules().values()):,} lines, "
        f"{len(arrows)} arrows, {len(past_a_door())} imports past a door; "
        f"tests {lines(tests):,} lines"
    )
    yield from (f"past a door: {i.user} imports {i.used}" for i in past_a_door())


def lines(files: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / PRODUCT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PRODUCT}."):
            module = str(node.module).removeprefix(f"{PRODUCT}.")
            for alias in node.names:
                full = f"{module}.{alias.name}"
                private = alias.name.startswith("_") and not alias.name.startswith("__")
                yield full if full in modules() or private else module


if __name__ == "__main__":
    for line in table():
        print(line)
