"""Shard ids and ranges of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.manifest.ids import as_range, expand, is_id, nearest

IDS = ["L00", "L00.p0", "head.0", "encoder", "my-encoder_2", "a" * 64]
NONE = ["", "0L", "L 0", "L/0", "a:b", "a,b", "L[0]", "L*", "é", "a" * 65, "L0\n", "-a", "."]


@pytest.mark.parametrize("text", IDS + NONE)
def test_ids(text: str) -> None:
    assert is_id(text) is (text in IDS)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("L00-L02", ["L00", "L01", "L02"]),
        ("L08-L10", ["L08", "L09", "L10"]),
        ("L8-L10", ["L8", "L9", "L10"]),
        ("L98-L101", ["L98", "L99", "L100", "L101"]),
        ("head.0-head.1", ["head.0", "head.1"]),
        ("L00.p6-L00.p7", ["L00.p6", "L00.p7"]),
        ("zaya-1-zaya-2", ["zaya-1", "zaya-2"]),
        ("L3-L3", ["L3"]),
        ("L{08-10}", ["L08", "L09", "L10"]),
        ("L{00-01}.p{6-7}", ["L00.p6", "L00.p7", "L01.p6", "L01.p7"]),
        ("L{00-01}.attn", ["L00.attn", "L01.attn"]),
        ("{0-1}{0-1}", ["00", "01", "10", "11"]),
        *((text, None) for text in ["L00", "L00-M02", "a-b", "L00-", "-L00", "L00-L9999999999"]),
    ],
)
def test_ranges(text: str, ids: list[str] | None) -> None:
    assert as_range(text) == ids


def test_lists_expand_in_order() -> None:
    assert expand(["L00-L01, head.0", " encoder "]) == ("L00", "L01", "head.0", "encoder")


FORM = "is neither a shard id such as 'L00' nor a range such as"


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        *(([f"head, {term}"], FORM) for term in ("", "L00-M01", "L00-", "L*", "L0 L1", "3")),
        *(([term], FORM) for term in ("L{0-}", "L{a-b}", "L{0-1", "L{0-1}}")),
        (["L00-L02", "L01"], r"^shard 'L01' is named twice; name every shard once$"),
        (["L{000-999}.p{00-99}"], r"has more than 10,000 shards; check its ends$"),
    ],
)
def test_terms_that_are_refused(terms: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        expand(terms)


def test_nearest_ids() -> None:
    ids = [f"L{number:02d}" for number in range(30)]
    assert nearest("l01", ids).startswith("nearest: L01")
    assert nearest("encoder", ids) == "there are: L00, L01, L02, ..., L29"
    assert nearest("encoder", ["x", "y"]) == "there are: x, y"
    assert nearest("L1", []) == "there are none"


@given(
    prefix=st.from_regex(r"[A-Za-z]([A-Za-z.]{0,8}[A-Za-z.])?", fullmatch=True),
    first=st.integers(0, 2000),
    more=st.integers(0, 300),
    width=st.integers(1, 5),
)
def test_a_range_holds_every_number_once(prefix: str, first: int, more: int, width: int) -> None:
    ends = [f"{prefix}{number:0{width}d}" for number in (first, first + more)]
    ids = as_range("-".join(ends))
    assert ids is not None
    assert [int(shard.removeprefix(prefix)) for shard in ids] == [*range(first, first + more + 1)]
    assert [ids[0], ids[-1]] == ends
    assert expand(["-".join(ends)]) == tuple(ids)
