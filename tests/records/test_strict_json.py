"""JSON text of evidence: its layout, and what is refused before it is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import MOST_BYTES, parse, pretty

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False,
                                                                           allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", max_size=60), inner),
    max_leaves=40,
)  # fmt: skip


def test_what_fits_a_line_takes_one() -> None:
    assert pretty({"b": [1, {"c": None}], "a": "x"}) == '{"a": "x", "b": [1, {"c": null}]}'


def test_numbers_take_one_line_however_many_and_objects_one_each() -> None:
    value = {"cosines": [0.125] * 50 + ["NaN"], "notes": ["n" * 100, "m" * 100]}
    assert pretty(value).splitlines() == [
        "{",
        f' "cosines": {json.dumps(value["cosines"])},',
        ' "notes": [',
        f'  "{"n" * 100}",',
        f'  "{"m" * 100}"',
        " ]",
        "}",
    ]


def test_one_number_more_is_one_line_of_a_diff() -> None:
    before: dict[str, Any] = {"a": [0.5] * 80, "b": [0.25] * 80, "c": [{"d": "e" * 99}] * 3}
    after = {**before, "b": [0.25] * 79 + [0.75]}
    pairs = zip(pretty(before).splitlines(), pretty(after).splitlines(), strict=True)
    assert sum(a != b for a, b in pairs) == 1


@given(VALUES)
def test_it_is_the_same_value_in_strict_json(value: Any) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert parse(text.encode()) == value


def test_nan_is_no_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        pretty([float("nan")])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b" " * (MOST_BYTES + 1), "16,777,217 bytes"),
        (b"[" * 33 + b"]" * 33, "nested more than 32 deep"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[" * 5000 + b"]" * 5000, "nested"),
        (b'{"a": NaN}', "holds NaN"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": 99999999999999999999}', "a has a number of 20 digits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "damaged"),
        (b'{"a": "\\u001b[2J"}', "a holds characters that a terminal would obey"),
        (b'{"\\u001b[2J": 1}', "a name holds characters"),
        (b'{"a": ["\\u202e"]}', "a holds characters"),
        (b'{"a": "\\ud800"}', "a holds characters"),
    ],
)
def test_what_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        parse(data)


def test_what_a_model_said_may_hold_anything() -> None:
    assert parse(b'{"text": "\\u001b[2J\\n"}') == {"text": "\x1b[2J\n"}
