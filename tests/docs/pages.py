"""The pages of the documentation, and what is written on them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PAGES", "ROOT", "SITE", "text_of", "tokens", "tomllib"]

ROOT = Path(__file__).resolve().parents[2]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")), *SITE]


@cache
def tokens(page: Path) -> tuple[Token, ...]:
    """A page's Markdown as markdown-it's block tokens, tables included."""
    parser = MarkdownIt("commonmark").enable("table")
    return tuple(parser.parse(page.read_text(encoding="utf-8")))


def text_of(inline: Token, code: str = "") -> str:
    """The words a reader sees of an inline token; inline code as it is, or as the word given."""
    words = {"text": str, "softbreak": lambda _: " ", "hardbreak": lambda _: " "}
    words["code_inline"] = lambda content: code or content
    return "".join(words[c.type](c.content) for c in inline.children or () if c.type in words)
