"""`pytest-ane report`: a recorded run, what other commands printed, and a page of both."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.probes.exact_chain import StackState
from pytest_ane.records.record import Record
from pytest_ane.records.run import Facts, Writer
from pytest_ane.report.run import Row, Run
from pytest_ane.report.verdict import row
from pytest_ane.report.verdict import to_json as verdict_json
from tests.gates.behaviour.test_judge import ALONE, GOOD
from tests.records.runs import save_run
from tests.tools.conftest import AsJson, Says

RECOMMEND: dict[str, Any] = {
    "command": "recommend",
    "model": "m",
    "max_kl": 0.05,
    "candidates": [{"name": "six", "size": 1e8, "kl": "NaN", "passed": False, "reasons": ["no"]}],
}
BOUND: dict[str, Any] = {
    "command": "bound",
    "name": "conv.mlpackage",
    "device": {"name": "M1"},
    "calls": [{"tokens": 1, "rate": 90.0, "kinds": [{"kind": "package", "seconds": 0.01}]}],
}


def run_of(path: str, *errors: float, started: str = "2026-11-24T16:00:00Z") -> None:
    """A file with a run of behaviour, its stack with these errors."""
    states = tuple(StackState(f"L{i:02d}", error, 0.9) for i, error in enumerate(errors))
    policy = BehaviourPolicy.model_validate({"min-positions": 1})
    verdict = judge(Behaviour((GOOD,), ALONE, {}, drift=states), policy, "m")
    made = Row("behaviour", "m", verdict.status, row(verdict), data=verdict_json(verdict))
    save_run(Path(path), Run("ane: all", (made,), Facts(started=started)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run.jsonl` is a run of model m, `bound.json` what `bound` printed."""
    monkeypatch.chdir(tmp_path)
    run_of("run.jsonl", 0.01, 0.5)
    Path("bound.json").write_text(json.dumps(BOUND))


@pytest.mark.slow
def test_a_page_of_a_run_and_what_commands_printed(says: Says) -> None:
    Path("recommend.json").write_text(json.dumps(RECOMMEND))
    (line,) = says("report", "run.jsonl", "recommend.json", "bound.json", "-o", "made/report.html")
    assert line.startswith("wrote made/report.html (")
    page = Path("made/report.html").read_text()
    for title in ("Drift over the layers", "Size against KL", "Tokens a second on M1"):
        assert title in page


@pytest.mark.slow
def test_a_run_before_is_drawn_beside_it(says: Says) -> None:
    run_of("old.jsonl", 0.02, 0.03, started="2026-11-23T16:00:00Z")
    says("report", "run.jsonl", "--against", "old.jsonl", "-o", "report.html")
    page = Path("report.html").read_text()
    assert "The run before had 0.0300 at its end." in page
    assert "2026-11-23 16:00:00 UTC" in page


def test_the_memory_is_drawn_up_to_the_run(says: Says, tmp_path: Path) -> None:
    for day in (21, 22, 24):
        remember(tmp_path / "history", day, 0.01 * day)
    says("report", "run.jsonl", "--against", "history", "-o", "report.html")
    page = Path("report.html").read_text()
    assert "KL over commits" in page
    assert "2026-11-22" in page


def remember(folder: Path, day: int, kl: float) -> None:
    facts = Facts(id=f"{day:032x}", started=f"2026-11-{day}T16:01:00Z")
    time = datetime(2026, 11, day, 16, tzinfo=timezone.utc)
    record = Record(gate="behaviour", subject="m", time=time, figures={"kl.mean": kl})
    Writer(folder, facts).add(record)


def test_markdown(as_json: AsJson) -> None:
    found = as_json("report", "run.jsonl", "-o", "r.md")
    assert found == {"written": "r.md", "verdicts": 1, "documents": []}
    assert "behaviour" in Path("r.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.json", "-o", "r.html"], "none.json cannot be read (No such file or directory)"),
        (["bound.json", "-o", "r.html"], "bound.json is no file of a run"),
        (["run.jsonl", "-o", "r.pdf"], "r.pdf: there is no such format; end the"),
        (["run.jsonl", "none.json", "-o", "r.html"], "none.json cannot be read"),
        (["run.jsonl", "bad.json", "-o", "r.html"], "bad.json is not what a command printed"),
        (["run.jsonl", "run.jsonl", "-o", "r.html"], "It is a run; compare with it by --against."),
        (["run.jsonl", "other.json", "-o", "r.html"], "other.json is of model n, and the run is"),
        (["run.jsonl", "odd.json", "-o", "r.html"], "or is damaged: ValueError("),
        (["run.jsonl", "bound.json", "-o", "r.md"], "only .html shows more than the run itself"),
        (["run.jsonl", "--against", "bound.json", "-o", "r.html"], "is no file of a run"),
        (["run.jsonl", "--against", "none", "-o", "r.html"], "none cannot be read"),
        (["run.jsonl", "--against", ".", "-o", "r.html"], "holds no record of a run"),
        (["run.jsonl", "-o", "bad.json/report.md"], "bad.json/report.md cannot be written:"),
        (["-o", "r.html"], "name the run, a file of --ane-report=run.jsonl"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(says: Says, arguments: list[str], sentence: str) -> None:
    Path("bad.json").write_text("{")
    Path("other.json").write_text(json.dumps(RECOMMEND | {"model": "n"}))
    odd = [RECOMMEND["candidates"][0] | {"size": "large"}]
    Path("odd.json").write_text(json.dumps(RECOMMEND | {"candidates": odd}))
    (said,) = says("report", *arguments, code=1)
    assert said.startswith("pytest-ane: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["run.jsonl"], "run.jsonl"),
        (["run.jsonl"], "link/run.jsonl"),
        (["run.jsonl", "bound.json"], "bound.json"),
        (["run.jsonl", "--against", "old.jsonl"], "old.jsonl"),
    ],
)
def test_no_input_is_overwritten(says: Says, arguments: list[str], out: str) -> None:
    Path("link").symlink_to(".")
    run_of("old.jsonl", 0.02)
    before = Path(out).read_bytes()
    (said,) = says("report", *arguments, "-o", out, code=1)
    assert said == f"pytest-ane: -o {out}: would overwrite what it is made from; name another file."
    assert Path(out).read_bytes() == before


def test_the_end_of_a_name_in_capitals(says: Says) -> None:
    (line,) = says("report", "run.jsonl", "-o", "R.HTML")
    assert line.startswith("wrote R.HTML (")
    assert Path("R.HTML").read_text().startswith("<!DOCTYPE html>")


def test_without_charts_the_page_says_what_is_missing(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    says("report", "run.jsonl", "bound.json", "-o", "report.html")
    assert "pip install &#39;pytest-ane[report]&#39;" in Path("report.html").read_text()
