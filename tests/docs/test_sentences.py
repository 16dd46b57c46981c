"""Sentences are short: under 22 words on average, on every page.

A sentence is a part of a paragraph or of a list item that ends with a full stop, question mark
or exclamation mark. Code counts as a word each; fences, tables, headings and pictures do not
count. Parts of fewer than four words are labels, and not counted either.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, text_of, tokens

MOST = 22
END = re.compile(r"(?<=[.!?])[\"')]*\s+")
WORD = re.compile(r"[^\W_]")


def sentences(page: Path) -> list[int]:
    """Lengths in words of a page's sentences."""
    lengths, aside = [], 0
    for token in tokens(page):
        if token.type in ("heading_open", "table_open"):
            aside += 1
        elif token.type in ("heading_close", "table_close"):
            aside -= 1
        elif token.type == "inline" and not aside:
            lengths += map(_words, END.split(text_of(token, code="code")))
    return [length for length in lengths if length > 3]


def _words(sentence: str) -> int:
    return sum(bool(WORD.search(part)) for part in sentence.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    lengths = sentences(page)
    average = sum(lengths) / max(len(lengths), 1)
    assert average < MOST, f"{len(lengths)} sentences have {average:.1f} words on average"
