"""The file of a run: what is written is read, and what is not whole is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.base import GateTest
from pytest_ane.mlprogram.errors import EvidenceError
from pytest_ane.records.record import Record
from pytest_ane.records.run import CUT_OFF, Facts, Writer, read_run
from tests.records.makers import record

FACTS = Facts(
    id="0f" * 16, started="2026-11-24T16:00:00Z", header="ane: all", arguments=("-m", "gate"),
    selection="all", gates={"test_fidelity.py": "1" * 64}, commit="2" * 40, clean=True,
)  # fmt: skip
ENDED = replace(FACTS, seconds=76.5, exit_code=1, machine={"backend": "cpu"})
RECORDS = (
    record("fidelity", figures={"cosine.min": 0.5}, verdict={"status": "failed"}),
    record("placement", verdict={"status": "passed"}),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "run.jsonl")


def write(path: Path, *records: Record) -> Path:
    writer = Writer(path, FACTS)
    for each in records or RECORDS:
        writer.add(each)
    writer.close(ENDED)
    return writer.path


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def refusal(file: Path) -> str:
    with pytest.raises(EvidenceError) as caught:
        read_run(file)
    assert str(caught.value).count("\n") == 0
    return str(caught.value)


def test_what_is_read_is_what_was_written(file: Path) -> None:
    found = read_run(file)
    assert found.facts == ENDED
    assert [each.typed().to_line() for each in found.records] == [r.to_line() for r in RECORDS]
    assert found.record(GateTest("placement", "smollm2:L01")) is found.records[1]
    assert found.record(("hazards", "smollm2:L01")) is None


def test_a_run_that_was_cut_off_says_so(file: Path) -> None:
    file.write_bytes(b"".join(lines(file)[:-1]))
    found = read_run(file)
    assert (found.facts.stopped, found.facts.exit_code) == (CUT_OFF, None)
    assert len(found.records) == 2


def test_a_folder_has_a_brief_file_for_each_run(tmp_path: Path) -> None:
    file = write(tmp_path / "history")
    assert file.name == "2026-11-24T16-00-00Z-0f0f0f0f0f0f.jsonl"
    found = read_run(file).records[0]
    assert (found.figures, found.measurement, found.verdict) == ({"cosine.min": 0.5}, None, None)


def test_what_no_reader_would_take_is_left_out(tmp_path: Path) -> None:
    hostile = replace(RECORDS[0], asked={"prompt": "\x1b[2J"})
    found = read_run(write(tmp_path / "run.jsonl", hostile)).records[0]
    assert (found.asked, found.measurement, found.verdict) == ({}, None, {"status": "failed"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda of: [], "is no file of a run: the JSON is damaged"),
        (lambda of: of[1:], "is no file of a run: it has no first line of a run"),
        (lambda of: [b'{"format":2,"run":{}}\n'], "is no file of a run: it has not format 1"),
        (lambda of: [b'{"format":true,"run":{}}\n'], "is no file of a run: it has not format 1"),
        (lambda of: [b'{"format":1,"run":[]}\n'], "is no file of a run: run is damaged"),
        (
            lambda of: [of[0].replace(b'"clean":true', b'"clean":[]'), *of[1:]],
            "is no file of a run: run.clean is damaged",
        ),
        (lambda of: [of[0], b"{\n", *of[1:]], "run.jsonl:2 the JSON is damaged"),
        (lambda of: [of[0], b"[" * 100_000], "run.jsonl:2 the JSON is nested too deeply"),
        (lambda of: [of[0], of[1].replace(b"M4", b"M5"), *of[2:]], "run.jsonl:2 was edited"),
        (lambda of: [of[0], of[2], of[1], of[3]], "run.jsonl:4 does not fit the lines before"),
        (lambda of: [of[0], of[1], of[3]], "run.jsonl:3 does not fit the lines before"),
        (lambda of: [*of[:3], of[2], of[3]], "run.jsonl:5 does not fit the lines before"),
        (
            lambda of: [of[0].replace(b'"clean":true', b'"clean":false'), *of[1:]],
            "run.jsonl:4 does not fit the lines before",
        ),
        (lambda of: [*of[:3], b'{"end":3}'], "run.jsonl:4 does not fit the lines before"),
        (lambda of: [*of, of[1]], "run.jsonl:5 follows the end"),
    ],
    ids=range(15),
)
def test_what_is_wrong_is_said(file: Path, change: Any, says: str) -> None:
    file.write_bytes(b"".join(change(lines(file))))
    assert says in refusal(file)


def test_a_missing_file_and_one_that_is_too_large(tmp_path: Path) -> None:
    assert refusal(tmp_path / "mine.jsonl").endswith(f"--ane-report={tmp_path / 'mine.jsonl'}.")
    assert refusal(tmp_path / "page.html").endswith("--ane-report=run.jsonl.")
    with (tmp_path / "run.jsonl").open("wb") as file:
        file.truncate(2 << 30)
    assert "bytes are more than it should have" in refusal(tmp_path / "run.jsonl")


@settings(max_examples=100)
@given(data=st.binary(max_size=200), at=st.integers(0, 3))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    file = write(tmp_path_factory.mktemp("run") / "run.jsonl")
    of = lines(file)
    of[at] = data
    file.write_bytes(b"".join(of))
    if data or at < 3:
        assert refusal(file).isprintable()
    else:
        assert read_run(file).facts.stopped == CUT_OFF


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    """Another run's is; a folder in the way, or a full disk, is one sentence."""
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps({"format": 1}))
    with pytest.raises(EvidenceError, match="is no file of a run and is not replaced"):
        Writer(file, FACTS)
    file.unlink()
    assert write(file) == write(file)
    (tmp_path / "file").write_text("")
    with pytest.raises(EvidenceError, match="cannot be written"):
        Writer(tmp_path / "file" / "run.jsonl", FACTS)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(EvidenceError, match="cannot be written"):
        Writer(tmp_path / "folder.jsonl", FACTS)
