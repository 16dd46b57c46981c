"""Evidence files: written and read again, and what is refused."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import Record, parse, plain, pretty, sealed
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


def test_the_format() -> None:
    text = record("placement").to_json()
    data = json.loads(text, parse_constant=pytest.fail)
    assert data.keys() == {
        "asked", "environment", "files", "format", "gate", "measurement", "sha256", "subject",
        "time",
    }  # fmt: skip
    assert (data["format"], data["gate"], data["subject"]) == (1, "placement", "smollm2:L01")
    assert data["files"] == {
        "L01/Data/weights/weight.bin": "1f" * 32,
        "L01/Manifest.json": "0" * 64,
    }
    assert data["time"] == "2026-11-21T16:05:59Z"
    assert text.endswith("}\n")


def test_a_line_is_the_same_record() -> None:
    line = record("fidelity", figures={"cosine.min": math.nan}, verdict={"status": "failed"})
    text = line.to_line()
    assert text.count(b"\n") == 1
    again = Record.from_data(parse(text))
    assert (again.figures, again.verdict) == ({"cosine.min": "NaN"}, {"status": "failed"})
    assert again.typed().to_line() == text
    assert again.brief().measurement is None


def test_no_verdict_is_in_it() -> None:
    for gate in GATES:
        text = record(gate).to_json()
        assert not any(word in text for word in ("passed", "failed", "unproven", "resident"))


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    east = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    text = record("placement", time=east).to_json()
    assert '"2025-12-31T23:30:00Z"' in text
    assert Record.from_json(text.encode()).time == east


def test_what_was_asked_is_compared_as_json_has_it() -> None:
    asked = plain({"widths": (1, 4), "prompts": {"a": None}})
    assert asked == {"widths": [1, 4], "prompts": {"a": None}}
    text = record("fidelity", asked=asked).to_json()
    assert Record.from_json(text.encode()).asked == asked


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


def test_a_file_without_its_digest_is_no_evidence() -> None:
    data = json.loads(record("fidelity").to_json())
    del data["sha256"]
    with pytest.raises(EvidenceError, match="edited"):
        Record.from_json(json.dumps(data).encode())


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
        (edited("fidelity", "format", to=2), "is no record of format 1"),
        (edited("fidelity", "format", to=True), "is no record of format 1"),
        (edited("fidelity", "predicateType", to="x"), "is a statement of an older version"),
        (edited("fidelity", "gate", to="hazards"), "the gate 'hazards', which has no evidence"),
        (edited("fidelity", "gate", to="mine"), "the gate 'mine', which has no evidence"),
        (edited("fidelity", "files", to=[]), "files is damaged"),
        (edited("fidelity", "files", to={}), "files names no file"),
        (
            edited("fidelity", "files", "L01/Manifest.json", to=None),
            r"files\.L01/Manifest\.js",
        ),
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
