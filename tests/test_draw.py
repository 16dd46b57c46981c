"""A change's draw: the same for the same commit, and four quarters are everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.draw import QUARTERS, quarter_of

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.draw import (
    pytest_addoption, pytest_collection_modifyitems, pytest_report_header,
    pytest_terminal_summary, pytest_testnodedown,
)
def pytest_configure(config):
    config.addinivalue_line("markers", "drawn: x")
    config.addinivalue_line("markers", "heavy: x")
"""
TESTS = """
import pytest
@pytest.mark.drawn
@pytest.mark.parametrize("n", range(10))
def test_dealt(n): pass
@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.drawn(n)) for n in range(4)])
@pytest.mark.parametrize("what", "ab")
def test_numbered(n, what): pass
@pytest.mark.heavy
@pytest.mark.drawn
def test_heavy(): pass
def test_always(): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.syspath_prepend(ROOT)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=TESTS, test_two=TESTS)
    return pytester


def ran(project: pytest.Pytester, *options: str) -> list[str]:
    result = project.runpytest_inprocess("--collect-only", "-q", "-p", "no:ane", *options)
    return [line for line in result.outlines if "::" in line]


@pytest.mark.drawn
@pytest.mark.slow
def test_four_quarters_are_everything_and_nothing_twice(project: pytest.Pytester) -> None:
    quarters = [ran(project, f"--quarter={n}") for n in range(QUARTERS)]
    always = {"test_one.py::test_always", "test_two.py::test_always"}
    assert all(always <= {*quarter} for quarter in quarters)
    dealt = [test for quarter in quarters for test in quarter if test not in always]
    assert sorted(dealt) == sorted({*ran(project)} - always)
    assert max(map(len, quarters)) - min(map(len, quarters)) <= 2


def test_a_number_keeps_together(project: pytest.Pytester) -> None:
    drawn = [test for test in ran(project, "--quarter=2") if "numbered" in test]
    names = ["numbered[a-2]", "numbered[b-2]"]
    assert drawn == [f"test_{file}.py::test_{name}" for file in ("one", "two") for name in names]


def test_a_selection_changes_no_quarter(project: pytest.Pytester) -> None:
    every = [ran(project, "--quarter=1"), ran(project, "--quarter=3")]
    heavy = [ran(project, "-m", "heavy", f"--quarter={n}") for n in (1, 3)]
    assert heavy == [[test for test in each if "test_heavy" in test] for each in every]


@pytest.mark.drawn
@pytest.mark.slow
def test_the_same_commit_is_the_same_draw_and_is_said(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "201b0fb2" + 31 * "0" + "7"
    monkeypatch.setattr("tests.draw.git", lambda *_: f"{commit}\n")
    assert quarter_of(commit) == 3
    assert ran(project, "--quarter=commit") == ran(project, "--quarter=3")
    result = project.runpytest_inprocess("--quarter=commit", "-p", "no:ane")
    result.stdout.fnmatch_lines(
        [
            "drawn: quarter 3 of 4, by commit 201b0fb20000",
            "drawn: * of 38 tests, quarter 3 of 4, by commit 201b0fb20000",
        ]
    )
    monkeypatch.setattr("tests.draw.git", lambda *_: "")
    assert ran(project, "--quarter=commit") == ran(project)


@pytest.mark.drawn
@pytest.mark.slow
def test_workers_draw_alike(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-n2", "--quarter=1", "-p", "no:ane")
    passed = len(ran(project, "--quarter=1"))
    result.assert_outcomes(passed=passed)
    result.stdout.fnmatch_lines([f"drawn: {passed - 2} of 38 tests, quarter 1 of 4"])
