"""Prompt lookup on texts one can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.throughput.ngram import Lookup


@pytest.mark.parametrize(
    ("text", "drafts"),
    [
        ("the cat, the", " cat"),
        ("ab1 ab2 ab", "2 ab"),
        ("xab1 yab2 xab", "1 ya"),
        ("no repeat", ""),
        ("aaa", "aaaa"),
        ("01010", "1010"),
        ("a", ""),
        ("", ""),
    ],
)
def test_drafts(text: str, drafts: str) -> None:
    """The latest place counts, of the longest end that has one; a short period goes on."""
    assert "".join(map(chr, Lookup()([*map(ord, text)], 4))) == drafts


def test_how_much_must_be_alike() -> None:
    text = [1, 2, 9, 2]
    assert Lookup()(text, 2) == []
    assert Lookup(shortest=1)(text, 2) == [9, 2]


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 6))
def test_a_text_that_grows_is_looked_up_as_one_that_is_whole(text: list[int], count: int) -> None:
    growing = Lookup()
    for end in range(len(text) + 1):
        assert growing(text[:end], count) == Lookup()(text[:end], count)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.integers(1, 6))
def test_what_is_drafted_has_followed_before(text: list[int], count: int) -> None:
    found = Lookup()(text, count)
    assert len(found) in (0, count)
    pairs = list(zip(text, text[1:], text[2:], strict=False))
    assert bool(found) == ((*text[-2:],) in [pair[:2] for pair in pairs])
    if found:
        assert (*text[-2:], found[0]) in pairs
