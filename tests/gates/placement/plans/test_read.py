"""Formats are recognised by content; no file, however damaged, is more than one sentence."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.placement.plans import parse_plan, read_plan
from pytest_ane.mlprogram.errors import PlanError
from pytest_ane.report.placement import explain_plan
from tests.gates.placement.plans.samples import ALL, COREMLTOOLS, LOG

_INSERTS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"-1", b"1e999", b"NaN", b"(", b")",
            b"\n", b"\x00", b"\xff", b"true", b"{}", b"[]", b"99999999999999999999")  # fmt: skip


def outcome(data: bytes) -> None:
    """It is read and can be told, or is refused in one sentence."""
    try:
        said = list(explain_plan(parse_plan(data)))
    except PlanError as error:
        said = [str(error)]
    assert not any("\n" in line for line in said)


def mutated(data: bytes, random: Random) -> bytes:
    for _ in range(random.randint(1, 3)):
        at, length = random.randrange(len(data) + 1), random.randint(1, 12)
        change = random.randrange(4)
        if change == 0:
            data = data[:at] + data[at + length :]
        elif change == 1:
            data = data[:at] + random.choice(_INSERTS) + data[at:]
        elif change == 2:
            data = data[:at] + random.choice(_INSERTS) + data[at + length :]
        else:
            data = data[:at] + data[at // 2 : at // 2 + length * 4] + data[at:]
    return data


@pytest.mark.parametrize("name", ALL)
def test_a_format_is_recognised_by_its_content(name: str, tmp_path: Path) -> None:
    file = tmp_path / "plan"
    file.write_text(ALL[name])
    assert read_plan(file).source == name.split("/")[0]


def test_a_byte_order_mark_does_not_matter() -> None:
    assert parse_plan(b"\xef\xbb\xbf" + COREMLTOOLS.encode()).source == "coremltools"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_mutated_files_are_refused_in_one_sentence(name: str) -> None:
    random, data = Random(name), ALL[name].encode()
    for _ in range(2000):
        outcome(mutated(data, random))


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode())))
def test_any_bytes_are_refused_in_one_sentence(data: bytes) -> None:
    outcome(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(key=st.sampled_from(["infos", "aneOps", "ane_ops"]), value=_JSON)
def test_any_value_under_a_known_key_is_refused_in_one_sentence(key: str, value: object) -> None:
    import json

    outcome(json.dumps({key: value}).encode())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is none of these"),
        (b"nothing of note", "is none of these"),
        (b"{}", "is none of these"),
        (b"\xff\xfe", "no UTF-8"),
        (b'{"infos": NaN}', "NaN"),
        (b'{"infos": [], "infos": []}', "'infos' twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"infos": ' + b"9" * 5000 + b"}", "damaged"),
        (b'{"infos": [', "damaged"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_plan(data)


@pytest.mark.parametrize(
    "text",
    [
        "a_ane=1" * 50_000,
        "op=a " + " " * 200_000 + "preferred=" + "\nx_ane=1",
        "a" * 200_000 + "_ane=1",
        LOG * 5_000,
    ],
)
def test_a_hostile_text_does_not_hang(text: str) -> None:
    from time import process_time

    begun = process_time()
    outcome(text.encode())
    assert process_time() - begun < 3


def test_a_file_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent: cannot be read \(No such file"):
        read_plan(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match="no regular file"):
        read_plan(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(PlanError, match="67,108,865 bytes"):
        read_plan(tmp_path / "large")
