"""Evidence files: written and read again, and what is refused of their JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import MOST_BYTES, Record, parse, pretty, sealed
from tests.records.makers import MEASURED, judged, record

GATES = list(MEASURED)
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/evidence.md"


def edited(gate: str, *path: str | int, to: Any) -> bytes:
    """A record with another value somewhere, and a digest that fits it."""
    data = json.loads(record(gate).to_json())
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return pretty(sealed(data)).encode()


@pytest.mark.parametrize("gate", GATES)
def test_what_is_read_is_what_was_written(gate: str) -> None:
    written = record(gate)
    text = written.to_json()
    read = Record.from_json(text.encode())
    assert read.to_json() == text
    assert (read.gate, read.subject, read.files) == (gate, written.subject, written.files)
    assert (read.environment, read.asked) == (written.environment, written.asked)
    assert read.time == written.time
    # By their representations, because NaN is not equal to itself. The provenance of what is read
    # is the record's environment.
    both = [judged(each.measurement) for each in (read, written)]
    alike, same = ([replace(verdict, provenance={}) for verdict in verdicts] for verdicts in both)
    assert repr(alike) == repr(same)


def test_who_wrote_the_reference_is_read_again() -> None:
    assert json.loads(record("fidelity").to_json())["measurement"]["same_module"] is True
    read = Record.from_json(record("fidelity").to_json().encode()).measurement
    assert {verdict.values["reference"] for verdict in judged(read)} == {"same module"}


def test_a_line_is_the_same_record() -> None:
    line = record("fidelity", figures={"cosine.min": math.nan}, verdict={"status": "failed"})
    text = line.to_line()
    assert text.count(b"\n") == 1
    again = Record.from_data(parse(text))
    assert (again.figures, again.verdict) == ({"cosine.min": "NaN"}, {"status": "failed"})
    assert again.typed().to_line() == text
    assert again.brief().measurement is None


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    east = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    text = record("placement", time=east).to_json()
    assert '"2025-12-31T23:30:00Z"' in text
    assert Record.from_json(text.encode()).time == east


def test_fields_that_are_not_known_are_ignored() -> None:
    data = edited("fidelity", "weather", to="rain")
    assert Record.from_json(data).subject == "smollm2:L01"
    data = edited("fidelity", "measurement", "comparisons", 0, "mood", to=1)
    assert len(Record.from_json(data).measurement.comparisons) == 2


def test_an_edited_number_is_noticed() -> None:
    text = record("fidelity").to_json()
    for before, after in [("0.998", "0.999"), ("M4", "M5"), ("float32", "float16"), ("1f", "1e")]:
        with pytest.raises(EvidenceError, match="was edited after it was recorded"):
            Record.from_json(text.replace(before, after, 1).encode())


def test_a_measurement_of_another_gate_is_a_mistake() -> None:
    for gate in ("fidelity", "throughput"):
        with pytest.raises(ValueError, match=f"a Plan answers no {gate} gate"):
            replace(record("placement"), gate=gate)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the JSON is damaged"),
        (b"[]", "the file is no JSON object"),
        (b"{}", "is no record of format 1"),
        (b"\xff{}", "byte 0 is no UTF-8 text"),
        (re.sub(b'"sha256": ".*"', b'"sha256": ""', edited("fidelity", "x", to=1)), "edited"),
        (edited("fidelity", "format", to=2), "is no record of format 1"),
        (edited("fidelity", "format", to=True), "is no record of format 1"),
        (edited("fidelity", "gate", to="hazards"), "the gate 'hazards', which has no evidence"),
        (edited("fidelity", "gate", to="mine"), "the gate 'mine', which has no evidence"),
        (edited("fidelity", "files", to=[]), "files is damaged"),
        (edited("fidelity", "files", to={}), "files names no file"),
        (edited("fidelity", "files", "L01/Manifest.json", to=None), r"files\.L01/Manifest\.js"),
        (edited("fidelity", "files", "L01/Manifest.json", to="F" * 64), "json is damaged"),
        (edited("fidelity", "time", to="yesterday"), "'yesterday' is no time"),
        (edited("fidelity", "subject", to=7), "subject is damaged"),
        (edited("fidelity", "environment", "chip", to=7), r"environment\.chip is damaged"),
        (edited("fidelity", "counter", to=0), "counter is damaged"),
        (edited("fidelity", "commit", to="x"), "commit is damaged"),
        (edited("fidelity", "asked", to=[]), "asked is damaged"),
        (edited("fidelity", "measurement", to=None), "measurement is no JSON object"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        Record.from_json(data)


def test_the_example_in_the_docs() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = Record.from_json(example.encode())
    assert found.to_json() == example
    (verdict,) = judged(found.measurement)
    assert (found.subject, verdict.status) == ("smollm2:L01", "passed")


# JSON text: its layout, and what is refused before it is looked at.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False,
                                                                           allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc", max_size=60), inner),
    max_leaves=40,
)  # fmt: skip


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


@pytest.mark.drawn
@pytest.mark.slow
@given(VALUES)
def test_it_is_the_same_value_in_strict_json(value: Any) -> None:
    text = pretty(value)
    assert json.loads(text) == value
    assert parse(text.encode()) == value


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
