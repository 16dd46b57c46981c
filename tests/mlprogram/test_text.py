"""Text of others on a terminal: it obeys none of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.text import printable

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202e", r"\u202e"),
        ("\ud800", r"\ud800"),
        ("naïve 模型.mlmodel", "naïve 模型.mlmodel"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(text=ANY, longest=st.integers(5, 100))
def test_it_is_one_line_and_not_longer_than_asked(text: str, longest: int) -> None:
    shown = printable(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest
    assert shown == text or not text.isprintable() or len(text) > longest


@pytest.mark.parametrize("letter", ["a", "\0"])
def test_long_text_loses_its_middle(letter: str) -> None:
    shown = printable(f"model.mlmodel: {letter * 100_000} is not defined.")
    assert shown.startswith("model.mlmodel: ")
    assert shown.endswith(" is not defined.")
