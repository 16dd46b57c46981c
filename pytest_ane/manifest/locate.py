"""Line numbers of keys in a TOML text, for messages; used only when something is wrong."""

from __future__ import annotations

from typing import Any

from pytest_ane.manifest.base import KeyPath
from pytest_ane.manifest.toml import loads

Lines = dict[KeyPath, int]


def key_lines(text: str) -> Lines:
    """Line (from 1) of every table and key of a valid TOML text, by path.

    Arrays of tables and arrays count their elements: `("models", "m", "prompts", 0, "text")`.
    A table that only its children imply has the line of the first of them.
    """
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    tree = Parser(Language(tree_sitter_toml.language())).parse(text.encode())
    lines: Lines = {}
    counts: dict[KeyPath, int] = {}
    for node in tree.root_node.children:
        if node.type == "pair":
            _pair(node, (), lines)
        elif node.type in ("table", "table_array_element"):
            path = _absolute(_keys(node.children[1]), counts)
            if node.type == "table_array_element":
                counts[path] = counts.get(path, -1) + 1
                path = (*path, counts[path])
            _note(path, node, lines)
            for child in node.children:
                if child.type == "pair":
                    _pair(child, path, lines)
    return lines


def line_of(lines: Lines, path: KeyPath) -> int | None:
    """The line of a path, or of the nearest table around it; `None` where there is none."""
    prefixes = (path[:length] for length in range(len(path), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)


def _note(path: KeyPath, node: Any, lines: Lines) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], node.start_point[0] + 1)


def _absolute(keys: tuple[str, ...], counts: dict[KeyPath, int]) -> KeyPath:
    """A header's path, each array of tables on the way followed by its current index."""
    path: KeyPath = ()
    for index, key in enumerate(keys):
        path = (*path, key)
        if path in counts and index < len(keys) - 1:
            path = (*path, counts[path])
    return path


def _pair(node: Any, table: KeyPath, lines: Lines) -> None:
    path = (*table, *_keys(node.children[0]))
    _note(path, node, lines)
    _value(node.children[-1], path, lines)


def _value(node: Any, path: KeyPath, lines: Lines) -> None:
    if node.type == "inline_table":
        for child in node.children:
            if child.type == "pair":
                _pair(child, path, lines)
    elif node.type == "array":
        values = [child for child in node.children if child.type not in ("[", "]", ",", "comment")]
        for index, child in enumerate(values):
            _note((*path, index), child, lines)
            _value(child, (*path, index), lines)


def _keys(node: Any) -> tuple[str, ...]:
    """The parts of `a."b c".d`; the TOML parser itself knows best how they are quoted."""
    table: Any = loads(f"{node.text.decode()} = 0")
    parts: list[str] = []
    while isinstance(table, dict):
        part, table = next(iter(table.items()))
        parts.append(part)
    return tuple(parts)
