"""A run in a file, and the command that repeats it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given

from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.report.formats import read_document
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Facts, Run, against, from_json, read_run, to_json
from tests.hostile import HOSTILE, check_lines

FACTS = Facts(
    started="2026-11-24T16:00:00Z",
    seconds=76.5,
    arguments=("--ane-shards=all", "-m", "gate", "-q", "--ane-report=r.html"),
    selection="all",
    manifest="shards.toml",
    digest="0" * 64,
    commit="1" * 40,
    clean=True,
    versions={"pytest-ane": "0.1.0"},
    machine={"backend": "cpu"},
)
ROWS = (
    Row("fidelity", "m:L01", "passed", "cosine 0.99", data={"figures": [], "gate": "fidelity"}),
    Row("fidelity", "m:L02", "error", "no such file", reasons=("No such file.",), test="a.py::b"),
    Row("", "test_mine.py::test_x", "error", "boom", place=("test_mine.py", 18)),
    Row("placement", "m:L01", "unproven", "none", allowed=True, marks=("synthetic",)),
)
RUN = Run("ane: all", ROWS, FACTS)


def test_a_run_comes_back_as_it_was_written() -> None:
    again = from_json(to_json(RUN))
    assert again.facts == FACTS
    assert again.header == RUN.header
    assert {row.summary: row.status for row in again.rows} == {
        row.summary: row.status for row in ROWS
    }
    of = {row.summary: row for row in again.rows}
    assert of["boom"].place == ("test_mine.py", 18)
    assert of["none"].allowed
    assert of["none"].name == "m:L01 synthetic"
    assert of["no such file"].data is None
    assert of["cosine 0.99"].data is not None


@given(text=HOSTILE)
def test_hostile_texts_are_lines(text: str) -> None:
    run = Run(text, (Row("g", text, "failed", text, reasons=(text,), test=text),), FACTS)
    made = to_json(run)
    assert made.isascii()
    check_lines([row.test for row in from_json(made).rows])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (FACTS.arguments, "pytest --ane-shards=m:L01 -m fidelity"),
        (
            ("--ane-shards", "all", "--ane-manifest", "a b.toml", "-m", "gate", "--ane-record"),
            "pytest --ane-shards=m:L01 '--ane-manifest=a b.toml' --ane-record -m fidelity",
        ),
        (
            ("--ane-package=x.mlpackage", "--ane-package", "y.mlpackage"),
            "pytest --ane-package=x.mlpackage --ane-package=y.mlpackage -m fidelity",
        ),
    ],
)
def test_the_command_that_asks_one_gate_again(arguments: tuple[str, ...], command: str) -> None:
    run = Run("", (), Facts(arguments=arguments, selection="all"))
    assert run.command("m:L01", marker="fidelity") == command


def test_the_command_of_a_model_and_of_the_whole_run() -> None:
    assert RUN.command("m", marker="behaviour") == "pytest '--ane-shards=m:*' -m behaviour"
    assert RUN.command() == "pytest --ane-shards=all -m gate"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no report of a run (the JSON is damaged"),
        ("[]", "it has not format 1"),
        (json.dumps({"format": 2}), "it has not format 1"),
        (json.dumps({"format": 1}), "is no report of a run (run is missing or damaged)"),
        (json.dumps({"format": 1, "run": {"clean": []}}), "(run.clean is missing or damaged)"),
        (json.dumps({"format": 1, "run": {}}), "(verdicts is missing or damaged)"),
        (
            json.dumps({"format": 1, "run": {}, "verdicts": [{"gate": 1}]}),
            "(verdicts.0.gate is missing or damaged)",
        ),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="--ane-report=") as caught:
        read_run(path)
    assert says in str(caught.value)


def test_a_missing_file_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        read_run(tmp_path / "none.json")
    (tmp_path / "r.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match="is no report"):
        read_run(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("name", "advice"), [("", "run.json"), ("page.html", "run.json"), ("mine.json", "mine.json")]
)
def test_the_advice_names_a_file_that_would_be_one(tmp_path: Path, name: str, advice: str) -> None:
    with pytest.raises(ReportError, match=rf"--ane-report=\S*{advice}\.$"):
        read_run(tmp_path / name)


def test_a_run_as_the_earlier_one_has_numbers_alone() -> None:
    figures = [
        {"name": "a", "value": 1},
        {"name": "b", "value": "NaN"},
        {"name": "c", "value": "x"},
    ]
    run = Run("", (Row("g", "m:L1", "passed", "", data={"figures": figures}),), FACTS)
    earlier = against(run, run).earlier
    assert earlier is not None
    assert earlier.label == "2026-11-24 16:00:00 UTC, commit 111111111"
    (of,) = earlier.figures.values()
    assert of["a"] == 1
    assert math.isnan(of["b"])
    assert len(of) == 2


def test_a_run_is_not_held_against_another_backend_nor_times_against_another_machine() -> None:
    def of(cosine: float, backend: str, chip: str) -> Run:
        facts = {"backend": backend, "chip": chip, "threads": "all"}
        made = (
            Row(gate, "m:L1", "passed", "", data={
                "figures": [{"name": name, "value": cosine}], "provenance": facts})
            for gate, name in (("fidelity", "cosine"), ("throughput", "tok_s"))
        )  # fmt: skip
        return Run("", tuple(made), FACTS)

    def compared(before: Run) -> list[str]:
        made = against(of(0.99, "cpu", "EPYC"), before)
        assert made.before is before
        assert made.earlier is not None
        return [gate for gate, _, _ in made.earlier.figures]

    assert compared(of(0.9, "cpu", "EPYC")) == ["fidelity", "throughput"]
    assert compared(of(0.9, "cpu", "Xeon")) == ["fidelity"]
    assert compared(of(0.9, "coreml", "M4")) == []


def test_a_file_of_others_cannot_hide_its_texts() -> None:
    row = {"gate": "g", "subject": "m:\u202eL1", "status": "passed", "summary": "\x1b[31m"}
    data = {"format": 1, "header": "\u202e", "run": {}, "verdicts": [row]}
    run = from_json(json.dumps(data))
    assert (run.header, run.rows[0].subject) == (r"\u202e", r"m:\u202eL1")
    assert run.rows[0].summary == r"\x1b[31m"


@pytest.mark.parametrize("depth", [700, 100_000])
def test_endless_nesting_is_one_sentence(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "run.json"
    path.write_text(
        '{"format": 1, "run": {}, "verdicts": [], "x": ' + "[" * depth + "]" * depth + "}"
    )
    with pytest.raises(ReportError, match="nested too deeply"):
        read_run(path)
    with pytest.raises(ReportError, match="nested too deeply"):
        read_document(path, [], "")
