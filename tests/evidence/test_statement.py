"""Evidence files: written and read again, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pytest_ane.evidence import Statement, plain
from pytest_ane.evidence.statement import sealed
from pytest_ane.evidence.strict_json import pretty
from pytest_ane.mlprogram.errors import EvidenceError
from tests.evidence.makers import MEASURED, judged, statement

GATES = list(MEASURED)


def edited(gate: str, *path: str | int, to: Any) -> bytes:
    """A statement with another value somewhere, and a digest that fits it."""
    data = json.loads(statement(gate).to_json())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return pretty(sealed(data)).encode()


@pytest.mark.parametrize("gate", GATES)
def test_what_is_read_is_what_was_written(gate: str) -> None:
    written = statement(gate)
    text = written.to_json()
    read = Statement.from_json(text.encode())
    assert read.to_json() == text
    assert (read.gate, read.subject, read.files) == (gate, written.subject, written.files)
    assert (read.environment, read.asked) == (written.environment, written.asked)
    assert read.recorded == written.recorded
    # By their representations, because NaN is not equal to itself. The provenance of what is read
    # is the statement's environment.
    both = [judged(each.measurement) for each in (read, written)]
    alike, same = ([replace(verdict, provenance={}) for verdict in verdicts] for verdicts in both)
    assert repr(alike) == repr(same)


def test_it_is_an_in_toto_statement() -> None:
    text = statement("placement").to_json()
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["_type"] == "https://in-toto.io/Statement/v1"
    assert data["predicateType"] == (
        "https://github.com/pytest-ane/pytest-ane/evidence/placement/v1"
    )
    assert data["subject"] == [
        {"name": "L01/Data/weights/weight.bin", "digest": {"sha256": "1f" * 32}},
        {"name": "L01/Manifest.json", "digest": {"sha256": "0" * 64}},
    ]
    assert data["predicate"].keys() == {
        "asked", "environment", "measurement", "recorded", "sha256", "shard",
    }  # fmt: skip
    assert data["predicate"]["recorded"] == "2026-11-21T16:05:59Z"
    assert text.endswith("}\n")


def test_no_verdict_is_in_it() -> None:
    for gate in GATES:
        text = statement(gate).to_json()
        assert not any(word in text for word in ("passed", "failed", "unproven", "resident"))


def test_a_time_of_another_zone_is_written_in_utc() -> None:
    east = datetime(2026, 1, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    text = statement("placement", recorded=east).to_json()
    assert '"2025-12-31T23:30:00Z"' in text
    assert Statement.from_json(text.encode()).recorded == east


def test_what_was_asked_is_compared_as_json_has_it() -> None:
    asked = plain({"widths": (1, 4), "prompts": {"a": None}})
    assert asked == {"widths": [1, 4], "prompts": {"a": None}}
    text = statement("fidelity", asked=asked).to_json()
    assert Statement.from_json(text.encode()).asked == asked


def test_fields_that_are_not_known_are_ignored() -> None:
    data = edited("fidelity", "predicate", "weather", to="rain")
    assert Statement.from_json(data).subject == "smollm2:L01"
    data = edited("fidelity", "predicate", "measurement", "comparisons", 0, "mood", to=1)
    assert len(Statement.from_json(data).measurement.comparisons) == 2


def test_an_edited_number_is_noticed() -> None:
    text = statement("fidelity").to_json()
    for before, after in [("0.998", "0.999"), ("M4", "M5"), ("float32", "float16"), ("1f", "1e")]:
        with pytest.raises(EvidenceError, match="was edited after it was recorded"):
            Statement.from_json(text.replace(before, after, 1).encode())


def test_a_file_without_its_digest_is_no_evidence() -> None:
    data = json.loads(statement("fidelity").to_json())
    del data["predicate"]["sha256"]
    with pytest.raises(EvidenceError, match="edited"):
        Statement.from_json(json.dumps(data).encode())


def test_a_measurement_of_another_gate_is_a_mistake() -> None:
    for gate in ("fidelity", "throughput"):
        with pytest.raises(ValueError, match=f"a Plan answers no {gate} gate"):
            replace(statement("placement"), gate=gate)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the JSON is damaged"),
        (b"[]", "the file is no JSON object"),
        (b"{}", "is no in-toto Statement"),
        (b"\xff{}", "byte 0 is no UTF-8 text"),
        (edited("fidelity", "_type", to="https://in-toto.io/Statement/v0.1"), "is no in-toto"),
        (edited("fidelity", "predicateType", to="https://slsa.dev/provenance/v1"), "is none of"),
        (edited("fidelity", "subject", to=[]), "subject is no list of files"),
        (edited("fidelity", "subject", 0, "digest", to={"sha1": "0"}), "sha256 is no text"),
        (edited("fidelity", "subject", 0, "digest", "sha256", to="F" * 64), "64 hexadecimal"),
        (edited("fidelity", "subject", 1, "name", to="L01/Data/weights/weight.bin"), "twice"),
        (edited("fidelity", "predicate", "recorded", to="yesterday"), "'yesterday' is no time"),
        (edited("fidelity", "predicate", "shard", to=7), "shard is no text"),
        (edited("fidelity", "predicate", "environment", "chip", to=7), r"environment\.chip is no"),
        (edited("fidelity", "predicate", "asked", to=[]), "asked is no JSON object"),
        (edited("fidelity", "predicate", "measurement", to=None), "measurement is no JSON object"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        Statement.from_json(data)
