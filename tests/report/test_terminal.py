"""The table of verdicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.report.rows import Row
from pytest_ane.report.terminal import Line, fitted, table

STATUSES = ("error", "failed", "unproven", "passed")
ROWS = st.lists(
    st.builds(
        Row,
        gate=st.sampled_from(("placement", "compression", "fidelity", "behaviour")),
        subject=st.sampled_from(("m:L00", "m:L01", "m:head.0", "m")),
        status=st.sampled_from(STATUSES),
        summary=st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=120),
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
        "error    m:L02  compression no such file",
        "failed   m:L00  fidelity    cosine min 0.5",
        "unproven m:L00  placement   nothing to place",
        "passed   m      behaviour   top-1 100.0%",
        "passed   m:L01  fidelity    cosine min 0.99",
        "passed: compression 0/1, fidelity 1/2, placement 0/1, behaviour 1/1",
    ]


def test_each_line_carries_the_status_that_colours_it() -> None:
    rows = [Row("fidelity", "m:L00", status, "") for status in STATUSES]
    assert [line.status for line in table(rows, width=80)] == [*STATUSES, ""]


def test_many_passed_are_counted_and_none_of_the_others_is_left_out() -> None:
    passed = [Row("fidelity", f"m:L{i:02}", "passed", "") for i in range(20)]
    failed = [Row("fidelity", f"m:L{i:02}", "failed", "") for i in range(20, 40)]
    lines = list(table(passed + failed, width=80))
    assert [line.status for line in lines[:32]] == ["failed"] * 20 + ["passed"] * 12
    assert lines[32:] == [
        Line("... and 8 more passed (-v shows all)"),
        Line("passed: fidelity 20/40"),
    ]
    assert len(list(table(passed + failed, width=80, everything=True))) == 41


def test_warnings_come_before_what_passed_and_are_never_only_counted() -> None:
    passed = [Row("compression", f"m:L{i:02}", "passed", "") for i in range(20)]
    warned = Row("compression", "m:L99", "passed", "warning: 1 weight", warned=True)
    lines = list(table([*passed, warned], width=80))
    assert lines[0] == Line("warned   m:L99  compression warning: 1 weight", "warned")
    assert lines[-1] == Line("passed: compression 21/21")


@given(ROWS, st.integers(60, 200))
def test_everything_not_passed_is_shown_within_the_width(rows: list[Row], width: int) -> None:
    lines = list(table(rows, width=width))
    assert sum(line.status not in ("", "passed") for line in lines) == sum(
        row.status != "passed" for row in rows
    )
    shown = [STATUSES.index(line.status) for line in lines if line.status]
    assert shown == sorted(shown)
    assert all(len(line.text) <= width for line in lines)
    assert not any("\n" in line.text for line in lines)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("short", 10, "short"),
        ("exactly ten", 11, "exactly ten"),
        ("trailing blank ", 40, "trailing blank"),
        ("one line\nof two", 40, "one line of two"),
        ("conv 7/7 · compute 58 ops · left out", 32, "conv 7/7 · compute 58 ops ..."),
        ("conv 7/7 · compute 58 ops · left out", 29, "conv 7/7 · compute 58 ops ..."),
        ("conv 7/7 · compute 58 ops", 24, "conv 7/7 · compute ..."),
        ("words of a sentence that goes on", 20, "words of a ..."),
        ("unbroken" * 5, 20, "unbrokenunbroken ..."),
    ],
)
def test_a_text_is_cut_at_a_part_or_a_word(text: str, width: int, shown: str) -> None:
    assert fitted(text, width) == shown


@given(st.text(st.characters(exclude_categories=("C",))), st.integers(10, 120))
def test_a_cut_text_begins_as_the_whole_does(text: str, width: int) -> None:
    shown = fitted(text, width)
    assert len(shown) <= width
    if shown != text.rstrip():
        assert text.startswith(shown.removesuffix(" ..."))


def test_gates_that_were_not_run_are_counted_below_what_kept_them_from_it() -> None:
    kept = [Row("fidelity", f"m:L{i:02}", "not run", "canary L01 failed") for i in range(20)]
    rows = [*kept, Row("placement", "m:L01", "failed", ""), Row("fidelity", "m:L99", "passed", "")]
    lines = list(table(rows, width=80))
    assert [line.status for line in lines] == ["failed", *["not run"] * 3, "", "passed", ""]
    assert lines[4].text == "... and 17 more not run (-v shows all)"
    assert len(list(table(rows, width=80, everything=True))) == 23
