"""The table at the end: worst first, 80 columns, and never in the way of the outcome."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project
from tests.plugin.test_junit import properties

SCREEN = """\
=*= ane gates =*=
ERROR    own:absent  compression own:absent: the artifact absent.mlpackage does
*
FAILED   own:good    fidelity    wrong function: 1.* of what good adds is
*
warned   own:good    placement   off the ANE (1 of 1 op, too little work,
*
passed   own:good    compression 2.43 kB
passed   own:nan     compression *
9 gates: 3 errors, 2 failed, 2 warned, 2 passed · slowest: own:*
"""


def rows(result: pytest.RunResult) -> list[str]:
    """The table of verdicts."""
    start = next(i for i, line in enumerate(result.outlines) if " ane gates " in line)
    end = next(i for i, line in enumerate(result.outlines) if " gates: " in line)
    return result.outlines[start + 1 : end]


@pytest.mark.parametrize("columns", [60, 80])
def test_worst_first_and_wrapped_to_the_terminal(
    project: Project, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = project.packages(good="other", nan="none", absent="none").gate()
    if columns == 80:
        result.stdout.fnmatch_lines(SCREEN.splitlines())
    assert max(map(len, rows(result))) < columns
    text = " ".join(" ".join(rows(result)).split())
    assert "> 0.02" in text


@pytest.mark.parametrize("options", [(), ("-q",), ("-v",)])
@pytest.mark.parametrize("columns", [None, 60, 80, 120])
def test_the_layout(
    project: Project, monkeypatch: pytest.MonkeyPatch, columns: int | None, options: tuple[str, ...]
) -> None:
    """One line of at most 80 columns for what passed, but with `-v`; all else whole and indented.

    In a pipe nothing is wrapped, and nowhere is there a colour.
    """
    for name, value in (("COLUMNS", columns and str(columns)), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    lines = rows(project.packages(good="other", nan="none").gate(*options))
    heads = [line for line in lines if not line.startswith(" ")]
    words = [line.split()[0] for line in heads]
    assert words == ["FAILED", "FAILED", "warned", "warned", "passed", "passed"]
    assert {line.index(line.split()[2]) for line in heads} == {19}
    assert all(line[:9].isspace() for line in lines if line not in heads)
    assert not any("\x1b" in line for line in lines)
    if columns is None:
        assert lines == heads
    else:
        assert max(map(len, lines)) < columns
    whole = [" · " in line for line in heads if line.startswith("passed")]
    assert whole == [options == ("-v",)] * 2
    assert options == ("-v",) or all(len(line) <= 80 for line in heads[-2:])


GATE = """
import pytest

@pytest.mark.gate
def test_taste(ane_shard):
    sweetness = 2
    assert sweetness > 3, "too sour"

@pytest.mark.gate
def test_look(ane_shard):
    1 / 0
"""


def test_gates_that_fail_by_assert_or_crash_have_their_rows(project: Project) -> None:
    project.pytester.makepyfile(test_mine=GATE)
    result = project.packages(good="none").gate("--junitxml=out.xml")
    result.assert_outcomes(passed=3, failed=2, deselected=1)
    result.stdout.fnmatch_lines(
        [
            "ERROR    own:good  look        ZeroDivisionError: division by zero",
            "FAILED   own:good  taste       too sour",
            "5 gates: 1 error, 1 failed, 1 warned, 2 passed *",
        ]
    )
    found = properties(project.path / "out.xml")["test_taste[own:good]"]
    assert (found["ane.status"], found["ane.place"]) == ("failed", "test_mine.py:6")


# pytest's own flags do with gates what they do with any test.

SECTION = "=*= ane gates =*="


@pytest.fixture
def mixed(project: Project) -> Project:
    """Two packages: one good, one whose output is NaN."""
    return project.packages(good="none", nan="none")


NAN_FAILED = "FAILED   own:nan   fidelity *"


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("options", "shown", "absent"),
    [
        (("-q",), [SECTION, NAN_FAILED], "ane: *"),
        (("-qq",), [], SECTION),
        (("--no-header",), [SECTION], "ane: *"),
        (("--no-summary",), ["ane: *"], SECTION),
        (("-x",), [SECTION, NAN_FAILED, "*stopping after 1 *"], "passed   own:nan   placement *"),
        (("--maxfail=1",), ["*stopping after 1 failures*"], "passed   own:nan   placement *"),
    ],
)
def test_what_is_shown(
    mixed: Project, options: tuple[str, ...], shown: list[str], absent: str
) -> None:
    result = mixed.gate(*options)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(shown)
    result.stdout.no_fnmatch_line(absent)


def test_last_failed_runs_what_failed(mixed: Project) -> None:
    mixed.gate().assert_outcomes(passed=5, failed=1, deselected=1)
    again = mixed.gate("--lf")
    again.assert_outcomes(failed=1, deselected=6)
    again.stdout.fnmatch_lines(["1 gate: 1 failed"])


def test_verbose_shows_ids_and_every_passed_verdict(project: Project) -> None:
    good = project.workshop.packages["good"]
    shards = (f'[models.own.shard.S{i}]\nartifact = "{good}"\nreference = "none"' for i in range(5))
    project.manifest("\n".join(shards))
    short, long = project.gate(), project.gate("-v")
    short.stdout.fnmatch_lines(
        ["warned   own:S0  placement *", "passed   own:S4  fidelity * (no reference)"]
    )
    assert "· also own:S1, own:S2, own:S3, own:S4" in " ".join(short.stdout.str().split())
    long.stdout.fnmatch_lines(["gates/test_fidelity.py::test_fidelity[[]own:S4[]] PASSED *"])
    long.stdout.fnmatch_lines(["warned   own:S4  placement *", "15 gates: *"])
