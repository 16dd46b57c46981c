"""Texts of others in Markdown: they render as themselves, whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_ane.mlprogram.text import LONGEST, printable

_MEANINGFUL = re.compile(r"[\\`*\[\]|{}]|(?<![^\W_])_|_(?![^\W_])|^[#+=:>-]|(?<=^\d)[.)](?!\d)")
"""Punctuation that can mean something: `_` not inside of a word, some only where a line begins."""
_ENTITY = re.compile(r"[<~$]|&(?=#?\w+;)")
"""Punctuation for which not every dialect knows a backslash."""


def prose(text: str) -> str:
    """A text on one line that renders as itself, and reads well as it is."""
    text = printable(" ".join(text.split()), LONGEST)
    text = _ENTITY.sub(lambda found: f"&#{ord(found[0])};", text)
    return _MEANINGFUL.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """A code span, or prose where none can hold the text."""
    text = printable(" ".join(text.split()), LONGEST)
    return prose(text) if not text or re.search(r"`|\||<!--", text) else f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table; cells are Markdown, and empty columns are left out."""
    rows = list(rows)
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells[i] for i in kept)} |"


def fenced(text: str) -> str:
    """A line of a fence, which it cannot end."""
    return printable(text, LONGEST).replace("```", "'''").replace("<!--", "<! --")
