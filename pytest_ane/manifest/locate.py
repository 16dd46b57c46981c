"""Line numbers of keys in a TOML text, for messages; used only when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every table and key of a valid TOML text, by path.

    Arrays of tables and arrays count their elements: `("models", "m", "prompts", 0, "text")`.
    """
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    tree = Parser(Language(tree_sitter_toml.language())).parse(text.encode())
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    for node in tree.root_node.children:
        if node.type == "pair":
            _pair(node, (), lines)
        elif node.type in ("table", "table_array_element"):
            path = _absolute(_key(node.children[1]), counts)
            if node.type == "table_array_element":
                number = counts[path] = counts.get(path, -1) + 1
                path = (*path, number)
            lines.setdefault(path, node.start_point[0] + 1)
            for child in node.children:
                if child.type == "pair":
                    _pair(child, path, lines)
    return lines


def _absolute(keys: tuple[str, ...], counts: dict[Path, int]) -> Path:
    """A header's path, each array of tables on the way followed by its current index."""
    path: Path = ()
    for i, key in enumerate(keys):
        path = (*path, key)
        if path in counts and i < len(keys) - 1:
            path = (*path, counts[path])
    return path


def _pair(node: Any, prefix: Path, lines: dict[Path, int]) -> None:
    path = (*prefix, *_key(node.children[0]))
    lines.setdefault(path, node.start_point[0] + 1)
    _value(node.children[-1], path, lines)


def _value(node: Any, path: Path, lines: dict[Path, int]) -> None:
    if node.type == "inline_table":
        for child in node.children:
            if child.type == "pair":
                _pair(child, path, lines)
    elif node.type == "array":
        values = [c for c in node.children if c.type not in ("[", "]", ",", "comment")]
        for i, child in enumerate(values):
            lines.setdefault((*path, i), child.start_point[0] + 1)
            _value(child, (*path, i), lines)


def _key(node: Any) -> tuple[str, ...]:
    return tuple(_parts(node))


def _parts(node: Any) -> Iterator[str]:
    if node.type == "dotted_key":
        for child in node.children:
            yield from _parts(child)
    elif node.type in ("bare_key", "quoted_key"):
        text = node.text.decode()
        yield text[1:-1] if node.type == "quoted_key" else text
