"""The table of a run's verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.report.run import Row
from pytest_ane.report.terminal import Line, brief, table

STATUSES = ("error", "failed", "unproven", "passed")
ROWS = st.lists(
    st.builds(
        Row,
        gate=st.sampled_from(("placement", "compression", "fidelity", "behaviour")),
        subject=st.sampled_from(("m:L00", "m:L01", "m:head.0", "m")),
        status=st.sampled_from(STATUSES),
        summary=st.lists(st.text("abc·", max_size=20), max_size=9).map(" ".join),
    ),
    max_size=40,
)


def test_worst_first_then_behaviour_then_by_subject() -> None:
    rows = [
        Row("fidelity", "m:L01", "passed", "cosine min 0.99"),
        Row("fidelity", "m:L00", "failed", "cosine min 0.5"),
        Row("behaviour", "m", "passed", "top-1 100.0%"),
        Row("placement", "m:L00", "unproven", "nothing to place"),
        Row("compression", "m:L02", "error", "no such file"),
    ]
    assert [line.text for line in table(rows, width=80)] == [
        "ERROR    m:L02  compression no such file",
        "FAILED   m:L00  fidelity    cosine min 0.5",
        "UNPROVEN m:L00  placement   nothing to place",
        "passed   m      behaviour   top-1 100.0%",
        "passed   m:L01  fidelity    cosine min 0.99",
        "5 gates: 1 error, 1 failed, 1 unproven, 2 passed",
    ]
    rows = [Row("fidelity", "m:L00", status, "") for status in STATUSES]
    assert [line.status for line in table(rows, width=80)] == [*STATUSES, ""]


def test_what_passed_is_counted_and_none_of_the_others_is_left_out() -> None:
    passed = [Row("fidelity", f"m:L{i:02}", "passed", "") for i in range(20)]
    failed = [Row("fidelity", f"m:L{i}", "failed", "a" * i) for i in range(20, 40)]
    lines = list(table(passed + failed, width=80))
    assert [line.status for line in lines[:32]] == ["failed"] * 20 + ["passed"] * 12
    assert lines[32:] == [
        Line("... and 8 more passed (-v shows all)"),
        Line("40 gates: 20 failed, 20 passed"),
    ]
    assert len(list(table(passed + failed, width=80, everything=True))) == 41
    passed = [Row("compression", f"m:L{i:02}", "passed", "") for i in range(20)]
    warned = Row("compression", "m:L99", "passed", "warning: 1 weight", warned=True)
    lines = list(table([*passed, warned], width=80))
    assert lines[0] == Line("warned   m:L99  compression warning: 1 weight", "warned")
    assert lines[-1] == Line("21 gates: 1 warned, 20 passed")


@pytest.mark.drawn
@pytest.mark.slow
@given(ROWS, st.integers(60, 200))
def test_everything_not_passed_is_shown_within_the_width(rows: list[Row], width: int) -> None:
    lines = list(table(rows, width=width))
    words = " ".join(line.text for line in lines).split()
    for row in rows:
        if row.status != "passed":
            assert set(row.summary.split()) <= set(words)
    shown = [STATUSES.index(line.status) for line in lines if line.status]
    assert shown == sorted(shown)
    assert all(len(line.text) <= width for line in lines)
    assert not any("\n" in line.text for line in lines)


LONG = "cosine 0.9946 (needs 0.97) · contribution 0.9946 · 16 probes · max |x| 38.9"


def texts(row: Row, width: int | None, *, everything: bool = False) -> list[str]:
    return [line.text for line in table([row], width=width, everything=everything)][:-1]


def test_a_passed_row_has_one_line_and_the_figure_that_decides() -> None:
    row = Row("fidelity", "smollm2:L01", "passed", LONG)
    (line,) = texts(row, 79)
    assert line == "passed   smollm2:L01  fidelity    cosine 0.9946 (needs 0.97)"
    assert texts(row, 60) == texts(row, None) == [line]
    assert texts(row, None, everything=True) == [f"passed   smollm2:L01  fidelity    {LONG}"]


def test_one_cause_of_many_shards_is_one_row_with_all_their_names() -> None:
    """Where their reasons differ in numbers and in the shard's name alone; the worst is kept."""

    def red(name: str, reason: str, gate: str = "fidelity") -> Row:
        return Row(gate, f"m:{name}", "failed", "algebra 1.5 > 0.02 · more", reasons=(reason, "2"))

    wrong = [red(f"L{i:02}", f"wrong function: 1.{i} of L{i:02}; see it") for i in range(3)]
    rows = [*wrong, red("L03", "compression: w costs 9"), red("L00", wrong[0].reasons[0], "own")]
    assert [line.text for line in table(rows)] == [
        "FAILED   m:L00  fidelity    wrong function: 1.0 of L00; see it · algebra 1.5 > 0.02 · "
        "also m:L01, m:L02",
        "FAILED   m:L00  own         wrong function: 1.0 of L00; see it · algebra 1.5 > 0.02",
        "FAILED   m:L03  fidelity    compression: w costs 9 · algebra 1.5 > 0.02",
        "5 gates: 5 failed",
    ]
    assert len(list(table(rows, everything=True))) == 6
    parts = [replace(row, part=part) for row in rows[:2] for part in ("load", "call")]
    assert [line.text.partition("· also ")[2] for line in table(parts)] == ["m:L01", ""]


@pytest.mark.parametrize("width", [59, 79])
def test_a_row_that_is_red_is_wrapped_and_nothing_is_lost(width: int) -> None:
    row = Row("fidelity", "zaya1-8b:L00.p0", "failed", LONG)
    lines = texts(row, width)
    assert len(lines) > 1
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == f"FAILED zaya1-8b:L00.p0 fidelity {LONG}"
    assert all(line.startswith(" " * 9) for line in lines[1:])
    passed = Row("fidelity", "zaya1-8b:L00.p0", "passed", LONG)
    assert texts(passed, width, everything=True)[-1].endswith("38.9")


def test_gates_that_were_not_run_are_counted_below_what_kept_them_from_it() -> None:
    kept = [Row("fidelity", f"m:L{i:02}", "not run", "canary L01 failed") for i in range(20)]
    rows = [*kept, Row("placement", "m:L01", "failed", ""), Row("fidelity", "m:L99", "passed", "")]
    lines = list(table(rows, width=80))
    assert [line.status for line in lines] == ["failed", *["not run"] * 3, "", "passed", ""]
    assert lines[4].text == "... and 17 more not run (-v shows all)"
    assert len(list(table(rows, width=80, everything=True))) == 23


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("/home/me/models/a.gguf: no such file.", "a.gguf: no such file."),
        ("The folder /var/cache/ane cannot be written.", "The folder ane cannot be written."),
        ("'/a b/c/x.toml' and (/d/e/y.toml)", "'/a b/c/x.toml' and (y.toml)"),
        ("1/2 of conv 7/7, 3 and/or 4", "1/2 of conv 7/7, 3 and/or 4"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("/file: missing.", "/file: missing."),
    ],
)
def test_paths_are_shortened_for_the_table(sentence: str, shown: str) -> None:
    assert brief(sentence) == shown
