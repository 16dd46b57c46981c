"""`pytest-ane report`: a recorded run, what other commands printed, and a page of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.cli import main
from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.history.lines import History, Line
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.probes.exact_chain import StackState
from pytest_ane.report.rows import Row
from pytest_ane.report.run import Facts, Run, to_json
from pytest_ane.report.verdict import row
from pytest_ane.report.verdict import to_json as verdict_json
from tests.gates.behaviour.test_judge import ALONE, GOOD
from tests.tools.conftest import AsJson

Says = Callable[..., list[str]]
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


def run_of(*errors: float, started: str = "2026-11-24T16:00:00Z") -> str:
    """The JSON of a run of behaviour, its stack with these errors."""
    states = tuple(StackState(f"L{i:02d}", error, 0.9) for i, error in enumerate(errors))
    policy = BehaviourPolicy.model_validate({"min-positions": 1})
    verdict = judge(Behaviour((GOOD,), ALONE, {}, drift=states), policy, "m")
    made = Row("behaviour", "m", verdict.status, row(verdict), data=verdict_json(verdict))
    return to_json(Run("ane: all", (made,), Facts(started=started)))


@pytest.fixture
def says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Says:
    """`says("report", ..., code=1)`: its lines, where `run.json` is a run of model m."""
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text(run_of(0.01, 0.5))

    def call(*arguments: str, code: int = 0) -> list[str]:
        assert main(["report", *arguments]) == code
        out, err = capsys.readouterr()
        return [*out.splitlines(), *err.splitlines()]

    return call


@pytest.mark.slow
def test_a_page_of_a_run_and_what_commands_printed(says: Says) -> None:
    Path("recommend.json").write_text(json.dumps(RECOMMEND))
    Path("bound.json").write_text(json.dumps(BOUND))
    (line,) = says("run.json", "recommend.json", "bound.json", "-o", "made/report.html")
    assert line.startswith("wrote made/report.html (")
    page = Path("made/report.html").read_text()
    for title in ("Drift over the layers", "Size against KL", "Tokens a second on M1"):
        assert title in page


@pytest.mark.slow
def test_a_run_before_is_drawn_beside_it(says: Says) -> None:
    Path("old.json").write_text(run_of(0.02, 0.03, started="2026-11-23T16:00:00Z"))
    says("run.json", "--against", "old.json", "-o", "report.html")
    page = Path("report.html").read_text()
    assert "The run before had 0.0300 after L01." in page
    assert "2026-11-23 16:00:00 UTC" in page


def test_the_memory_is_drawn_up_to_the_run(says: Says, tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    for day in (21, 22, 24):
        history.append(line(day, 0.01 * day))
    says("run.json", "--history", "history", "-o", "report.html")
    page = Path("report.html").read_text()
    assert "KL over commits" in page
    assert "2026-11-22" in page


def line(day: int, kl: float) -> Line:
    return Line(
        run=f"{day:032x}", time=f"2026-11-{day}T16:01:00Z", commit="", clean=False,
        gate="behaviour", subject="m",
        figures={"kl.mean": kl},
    )  # fmt: skip


@pytest.mark.parametrize("end", ["json", "md"])
def test_other_formats(says: Says, end: str) -> None:
    says("run.json", "-o", f"report.{end}")
    text = Path(f"report.{end}").read_text()
    assert text == run_of(0.01, 0.5) if end == "json" else "behaviour" in text


def test_as_json(says: Says, as_json: AsJson) -> None:
    assert as_json("report", "run.json", "-o", "r.md") == {
        "written": "r.md",
        "verdicts": 1,
        "documents": [],
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none.json", "-o", "r.html"], "none.json cannot be read (No such file or directory)"),
        (["bound.json", "-o", "r.html"], "bound.json is no report of a run"),
        (["run.json", "-o", "r.pdf"], "r.pdf: there is no such format; end the"),
        (["run.json", "none.json", "-o", "r.html"], "none.json cannot be read"),
        (["run.json", "bad.json", "-o", "r.html"], "bad.json is not what a command printed"),
        (["run.json", "run.json", "-o", "r.html"], "It is a run; compare with it by --against."),
        (["run.json", "other.json", "-o", "r.html"], "other.json is of model n, and the run is"),
        (["run.json", "odd.json", "-o", "r.html"], "odd.json is not as pytest-ane recommend "
         "--json prints it ('large' is no finite number above 0)"),
        (["run.json", "bound.json", "-o", "r.md"], "only .html shows more than the run itself"),
        (["run.json", "--against", "bound.json", "-o", "r.html"], "is no report of a run"),
        (["run.json", "--history", "none", "-o", "r.html"], "none"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(says: Says, arguments: list[str], sentence: str) -> None:
    Path("bound.json").write_text(json.dumps(BOUND))
    Path("bad.json").write_text("{")
    Path("other.json").write_text(json.dumps(RECOMMEND | {"model": "n"}))
    odd = [RECOMMEND["candidates"][0] | {"size": "large"}]
    Path("odd.json").write_text(json.dumps(RECOMMEND | {"candidates": odd}))
    (said,) = says(*arguments, code=1)
    assert said.startswith("pytest-ane: ")
    assert sentence in said


@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["run.json"], "run.json"),
        (["run.json"], "link/run.json"),
        (["run.json", "bound.json"], "bound.json"),
        (["run.json", "--against", "old.json"], "old.json"),
    ],
)
def test_no_input_is_overwritten(says: Says, arguments: list[str], out: str) -> None:
    Path("link").symlink_to(".")
    Path("bound.json").write_text(json.dumps(BOUND))
    Path("old.json").write_text(run_of(0.02))
    before = Path(out).read_bytes()
    (said,) = says(*arguments, "-o", out, code=1)
    assert said == f"pytest-ane: -o {out}: would overwrite what it is made from; name another file."
    assert Path(out).read_bytes() == before


def test_the_end_of_a_name_in_capitals(says: Says) -> None:
    (line,) = says("run.json", "-o", "R.HTML")
    assert line.startswith("wrote R.HTML (")
    assert Path("R.HTML").read_text().startswith("<!DOCTYPE html>")


def test_a_folder_that_cannot_be_written_is_one_sentence(says: Says) -> None:
    Path("file").write_text("")
    (said,) = says("run.json", "-o", "file/report.md", code=1)
    assert "file/report.md cannot be written (" in said


def test_without_charts_the_page_says_what_is_missing(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    Path("bound.json").write_text(json.dumps(BOUND))
    says("run.json", "bound.json", "-o", "report.html")
    assert "pip install &#39;pytest-ane[report]&#39;" in Path("report.html").read_text()
