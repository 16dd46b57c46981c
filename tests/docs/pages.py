"""The pages of the documentation, and what is written on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")), *SITE]


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    """A page's Markdown as markdown-it's block tokens, tables included."""
    parser = MarkdownIt("commonmark").enable("table")
    return tuple(parser.parse(page.read_text(encoding="utf-8")))


def text_of(inline: Token) -> str:
    """The words a reader sees of an inline token; code as it is written."""
    words = (
        child.content if child.type in ("text", "code_inline") else " "
        for child in inline.children or ()
        if child.type in ("text", "code_inline", "softbreak", "hardbreak")
    )
    return "".join(words)
