"""Texts that obey nobody: what a stream may hold, and strings that try to hold more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from pytest_ane.mlprogram.text import LONGEST

_NASTY = (
    "::error::x", "\n::error::x", "::stop-commands::token", "  ::add-mask::a", "##[error]x",
    "a ##[stop-commands]b", "##vso[task.complete]", "\x1b[2J", "\x1b]0;title\x07", "\x9b31m",
    "\r", "\n", "\0", "\x7f", "\x85", "\u2028", "\u202e", "\u2066", "\ufeff", "\ud800", "\udfff",
    "|", "`", "<img src=x>", "](http://x)", "]]>", "%0A::error::y", "a.b_c", "name", " ",
)  # fmt: skip
HOSTILE = st.one_of(
    st.lists(st.sampled_from(_NASTY), min_size=1, max_size=6).map("".join),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=40),
    st.builds(lambda text, n: text * n, st.sampled_from(_NASTY), st.sampled_from([60, 2000])),
)
"""Controls, ANSI, bidi, CI commands, line breaks, lone surrogates, up to 50,000 characters."""


def check_lines(lines: Iterable[str], longest: int = LONGEST + 80) -> None:
    """No control, no command to a CI, no endless line; a little is allowed for indents."""
    for line in lines:
        assert line.isprintable()
        assert re.search(r"^\s*::|##\w*\[", line) is None
        assert len(line) <= longest


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of everything in a document, its containers among them."""
    if place:
        yield place
    known = dict(enumerate(value)) if isinstance(value, list) else value
    for key, inner in known.items() if isinstance(known, dict) else ():
        yield from leaves(inner, (*place, key))
