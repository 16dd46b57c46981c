"""The page of a run, read as HTML without a browser."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings

from pytest_ane.gates.verdict import Column, Figure, Finding, Table, Verdict, Where
from pytest_ane.records.history import Course, Earlier, Point
from pytest_ane.records.run import Facts
from pytest_ane.report.html._page import page
from pytest_ane.report.html.subjects import (
    Judged,
    Subject,
    gates,
    grid,
    prompts,
    strip,
    subjects,
)
from pytest_ane.report.run import Row, Run, against, verdict_of
from pytest_ane.report.verdict import reasons, row, to_json
from pytest_ane.report.writeups import Page
from tests.hostile import HOSTILE
from tests.records.runs import reread

COSINE = Figure("cosine.min", 0.98, label="cosine", limit=0.97, good="above", shown=True)


def row_of(verdict: Verdict) -> Row:
    warned = verdict.status == "passed" and bool(verdict.warnings)
    return Row(
        verdict.gate, verdict.subject, verdict.status, row(verdict), warned=warned,
        reasons=tuple(reasons(verdict)), data=to_json(verdict),
    )  # fmt: skip


def run_of(*verdicts: Verdict) -> Run:
    rows = tuple(map(row_of, verdicts))
    facts = Facts(arguments=("--ane-shards=all", "-m", "gate"), selection="all")
    return reread(Run("ane: all", rows, facts))


def figure(value: float, *, limit: float = 0.97, **more: object) -> Figure:
    return Figure("c", value, label="c", limit=limit, good="above", **more)


FAILED = Verdict(
    "fidelity",
    "m:L02",
    (Figure("cosine.min", 0.5, label="cosine", limit=0.97, good="above"),),
    (Finding("failed", "cosine is low", Where(weight="w_q"), "use 6 bits", figure="cosine.min"),),
)
PASSED = Verdict("fidelity", "m:L01", (COSINE,))


class Reader(HTMLParser):
    """Text, elements and attributes; scripts' and styles' content apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def packed_of(text: str) -> dict[str, str]:
    """The details that are packed, by subject."""
    found = re.search(r'id="packed">(.*?)</script>', text, re.DOTALL)
    return {
        name: gzip.decompress(base64.b64decode(data)).decode()
        for name, data in json.loads(found[1]).items()
    }


def test_what_is_red_comes_first_with_cause_and_remedy() -> None:
    text = Reader(page(run_of(PASSED, FAILED))).text
    assert "1 of 2 gates red" in text
    head = text[: text.index("Shards and gates")]
    assert "What is red, the worst first m:L02" in head
    assert "cosine is low Remedy: use 6 bits" in head
    assert "m:L01" not in head.partition("About this run")[2]
    assert "No gate was judged" in Reader(page(Run("h", ()))).text
    assert "All 1 gate passed" in Reader(page(run_of(PASSED))).text
    assert (
        "All 2 gates passed" in Reader(page(run_of(PASSED, replace(PASSED, gate="hazards")))).text
    )


def test_details_are_packed() -> None:
    made = page(run_of(PASSED, FAILED))
    assert list(packed_of(made)) == ["m:L02", "m:L01"]
    detail = Reader(packed_of(made)["m:L01"]).text
    assert "cosine 0.9800 ≥ 0.97" in detail
    assert "pytest --ane-shards=m:L01 -m fidelity" in detail
    assert "cosine is low" in packed_of(made)["m:L02"]


def test_tests_that_broke_down_and_runs_that_were_stopped() -> None:
    broken = Row("", "test_mine.py::test_x", "error", "boom", place=("test_mine.py", 3))
    made = page(Run("h", (broken,)))
    assert "<h1>No gate was judged, 1 test broke down</h1>" in made
    assert "boom" in made
    run = run_of(FAILED)
    waiting = Row("placement", "m:L02", "not run", "not reached: interrupted")
    facts = replace(run.facts, stopped="interrupted")
    made = page(replace(run, rows=(*run.rows, waiting), facts=facts))
    assert "1 of 2 gates red, 1 not run; stopped early: interrupted" in made
    assert "not reached: interrupted" in made


def test_verdicts_that_turned_limits_that_moved_and_other_backends() -> None:
    then = figure(0.98, limit=0.9, shown=True)
    other = Verdict("placement", "m:L01")
    old = run_of(Verdict("fidelity", "m:L01", (then,)), other)
    finding = Finding("failed", "low")
    new = run_of(Verdict("fidelity", "m:L01", (figure(0.98, limit=0.99),), (finding,)))
    text = Reader(page(against(new, old))).text
    assert "m:L01 fidelity: passed before, failed now" in text
    assert "fidelity c: limit 0.9 before, 0.99 now" in text
    assert "1 verdict only before: m:L01 placement" in text
    old, new = (
        run_of(Verdict("fidelity", "m:L01", (figure(c),), provenance={"backend": backend}))
        for c, backend in ((0.99, "cpu"), (0.98, "coreml"))
    )
    text = Reader(page(against(new, old))).text
    assert "figures of 1 verdict are not compared: another backend or machine" in text
    assert "No figure with a limit differs." in text


def test_nothing_is_asked_of_the_network_and_no_script_runs_but_the_page_s_own() -> None:
    made = page(run_of(PASSED, FAILED))
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", made)
    assert "@import" not in made
    assert "default-src 'none'" in made
    course = Course("fidelity", "m:L01", "", "cosine.min", "cpu", (Point("a", "t", 0.98),), None)
    made = page(replace(run_of(PASSED), courses=(course,)))
    assert made.count("<svg ") == 1
    (code,) = re.findall("<script>(.*?)</script>", made, re.DOTALL)
    digest = base64.b64encode(sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in made


def test_the_worst_is_first_and_models_before_their_shards_unless_red() -> None:
    found = subjects(
        run_of(
            Verdict("fidelity", "m:L00", (figure(0.999),)),
            Verdict("behaviour", "m", (figure(0.99),)),
            Verdict("fidelity", "m:L01", (figure(0.971),)),
            FAILED,
        )
    )
    assert [subject.name for subject in found] == ["m:L02", "m", "m:L01", "m:L00"]
    red = subjects(run_of(Verdict("behaviour", "m", (figure(0.1),)), FAILED))
    assert [subject.name for subject in red] == ["m:L02", "m"]
    assert gates(found) == [("behaviour", ""), ("fidelity", "")]


def judged(*figures: Figure) -> Judged:
    verdict = Verdict("g", "m:L01", figures)
    return Judged(row_of(verdict), verdict)


def test_a_cell_has_the_figure_that_decides_and_its_room() -> None:
    shown, near = figure(0.999, shown=True), figure(0.971)
    assert judged(near, shown).deciding == shown
    beyond = Figure("d", 2.0, limit=1.0, good="below")
    assert judged(shown, beyond).deciding == beyond
    assert judged(figure(math.nan, shown=True)).room == -math.inf
    assert judged(Figure("n", "text", limit=1.0)).brief == "text"
    assert judged().brief == "passed"
    assert math.isclose(judged(figure(0.985)).room, 0.5)
    assert judged(figure(0.97)).level == 0
    assert judged(figure(1.0)).level == 4
    size = Figure("s", 75, "bytes", limit=100, good="below")
    assert math.isclose(judged(size).room, 0.25)


def compared(value: float) -> str:
    figures = {("fidelity", "m:L01", ""): {"cosine.min": value}}
    earlier = Earlier("1a2b3c4d5", "2026-11-23 10:00:00", "1a2b3c4d5" + 31 * "0", figures)
    return page(replace(run_of(PASSED), earlier=earlier))


def test_what_changed_since_the_last_run() -> None:
    made = compared(0.99)
    text = Reader(made).text
    assert "What changed since 1a2b3c4d5" in text
    assert "m:L01 fidelity cosine 0.9900 0.9800 worse" in text
    assert "last run cosine 0.9800 ≥ 0.97 0.9900" in Reader(packed_of(made)["m:L01"]).text
    assert "No figure with a limit differs." in Reader(compared(0.98)).text
    assert "NaN 0.9800 better" in Reader(compared(math.nan)).text


def test_numbers_that_json_has_no_form_for_come_back() -> None:
    cells = Table("t", (Column("a"),), ((math.nan,), ("x",)))
    infinite = Figure("i", math.inf, limit=1.0, good="below")
    verdict = Verdict("g", "m", (figure(math.nan), infinite), tables=(cells,))
    again = verdict_of(json.loads(json.dumps(to_json(verdict))))
    assert math.isnan(float(again.figures[0].value))
    assert again.figures[1].value == math.inf
    assert not any(f.passes for f in again.figures)
    (not_a_number,), (text,) = again.tables[0].rows
    assert math.isnan(float(not_a_number or 0))
    assert text == "x"


def columns(*titles: str) -> tuple[Column, ...]:
    return tuple(map(Column, titles))


def test_a_grid_marks_what_is_beyond_and_is_cut() -> None:
    table = Table(
        "t",
        (Column("a"), Column("kl", "nats", 0.1, "below"), Column("n", bar=True), Column("none")),
        (("x", 0.05, 1, None), ("y", 0.2, 4, None), ("z", math.nan, 0, None)),
    )
    made = grid(table)
    assert made.heads == ("a", "kl <= 0.1 nats", "n")
    assert [row[1].beyond for row in made.rows] == [False, True, True]
    assert [row[2].bar for row in made.rows] == [25.0, 100.0, 0.0]
    assert grid(Table("t", columns("a", "bin 1"), ((1, 2),))).heads == ("a",)
    made = grid(Table("t", columns("a"), tuple((i,) for i in range(1000))))
    assert (len(made.rows), made.more) == (400, 600)


def test_the_strip_joins_units_errors_and_hazards_by_name() -> None:
    program = Table(
        "the program",
        columns(
            "op", "type", "function", "forecast", "predicted", "recorded", "predicted time", "why"
        ),
        (
            ("a", "conv", "main", "eligible", "ANE", None, 1e-5, ""),
            ("b", "gather", "main", "ineligible", "ANE", None, None, "R12"),
            ("c", "add", "main", None, "ANE", "CPU", None, ""),
            ("d", "mul", "main", "eligible", "", None, None, ""),
            ("e", "mul", "main", None, None, None, None, ""),
        ),
        "program",
        listed=False,
    )
    blame = Table(
        "b", columns("op", "own error"), (("a", 0.01), ("c", math.nan)), "blame.operations"
    )
    hazards = Table(
        "h",
        columns("operation", "hazard", "value", "limit"),
        (("a", "largest |sum|", 30000.0, 32768.0), ("c", "largest |sum|", 3.0, 32768.0)),
        "hazards",
    )
    verdicts = [
        Verdict("placement", "m:L0", tables=(program,)),
        Verdict("fidelity", "m:L0", tables=(blame,)),
        Verdict("hazards", "m:L0", tables=(hazards,)),
    ]
    ops = strip(Subject("m:L0", (), tuple(Judged(row_of(v), v) for v in verdicts)))
    assert [op.unit for op in ops] == ["ane", "off", "cpu", "ane", ""]
    assert [op.where for op in ops] == [
        "predicted ANE, forecast eligible",
        "predicted ANE, forecast ineligible",
        "recorded CPU, predicted ANE",
        "forecast eligible",
        "undecided",
    ]
    assert [op.error for op in ops] == ["0.01", None, "NaN", None, None]
    assert ops[2].height == 100
    assert 60 < ops[0].height < 70
    assert ops[0].hazards == "largest |sum| 3e+04 of 3.28e+04"
    assert ops[2].hazards == ""


def test_prompts() -> None:
    heads = columns("prompt", "position", "text", "KL", "top-1", "bad")
    rows = (
        ("a", 0, "Hi", 0.0, "yes", "no"),
        ("a", 1, " you", 0.5, "no", "yes"),
        ("a", 2, "!", 0.02, "yes", "yes"),
    )
    (tokens,) = prompts(Table("positions", heads, rows).records).values()
    assert [token.level for token in tokens] == [0, 4, 1]
    assert [token.first for token in tokens] == [False, True, False]
    assert tokens[1].says == "position 1: KL 0.5000 nats, another token"


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=HOSTILE, text=HOSTILE)
def test_hostile_texts_stay_text(name: str, text: str) -> None:
    """No element, no attribute and no script comes of them."""
    made = _with(f"x{name}", f"x{text}")
    before, after = CALM, Reader(page(made))
    assert after.elements == before.elements
    assert [n for n, _ in after.attributes] == [n for n, _ in before.attributes]
    for subject in packed_of(page(made)).values():
        assert "<img" not in subject


def _with(name: str, text: str) -> Run:
    table = Table(text, columns(text, "b"), ((text, 1.0), (text, 2.0)), "weights")
    findings = (Finding("failed", text, Where(op=text), text), Finding("note", text))
    bad = Verdict(
        "fidelity", f"m:{name}", (figure(0.5, note=text),), findings, (table,), {"machine": text},
        text, text,
    )  # fmt: skip
    return run_of(bad, Verdict("fidelity", "m:L01", (COSINE,), findings[1:], (table,)))


CALM = Reader(page(_with("name", "text")))


def test_write_ups_are_text() -> None:
    result = (
        "| a | b |\n| --- | --- |\n| 1 | [x](a.json) [j](javascript:b) ![y](z.svg) <img src=q> |"
    )
    pages = (
        Page("002-b", {}, "002-b.md:3 is damaged."),
        Page("001-a", {"Intent": "<b>4 *bits*</b>", "Result": result, "Lesson": ""}),
    )
    made = page(replace(run_of(PASSED), writeups=pages))
    assert "&lt;b&gt;4 <em>bits</em>&lt;/b&gt;" in made
    assert "<td>1</td>" in made
    reader = Reader(made)
    assert "img" not in reader.elements
    assert not any("javascript" in value for _, value in reader.attributes)
    assert "002-b 002-b.md:3 is damaged. 001-a: <b>4 bits</b> Intent" in reader.text
    assert "1 x [j](javascript:b) y <img src=q>" in reader.text
    assert "Lesson" not in reader.text
