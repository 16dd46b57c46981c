"""The table at the end: worst first, 80 columns, and never in the way of the outcome."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

SCREEN = """\
=*= ane gates =*=
error    own:absent  compression own:absent: the artifact absent.mlpackage ...
error    own:absent  fidelity    own:absent: the artifact absent.mlpackage ...
error    own:absent  placement   own:absent: the artifact absent.mlpackage ...
failed   own:good    fidelity    cosine min -0.0370* mean -0.0297* ...
failed   own:nan     fidelity    runs, 100.00% NaN or infinite *
passed   own:good    compression 0.00 MB, 0.05x smaller than fp16 ...
passed   own:good    placement   eligible, needs device evidence · conv 1/1 ...
passed   own:nan     compression 0.00 MB, 0.05x smaller than fp16 · 0 weights
passed   own:nan     placement   eligible, needs device evidence · conv 1/1 ...
passed: compression 2/3, fidelity 0/3, placement 2/3
=*= short test summary info =*=
"""


def test_worst_first_in_80_columns(project: Project) -> None:
    result = project.packages(good="other", nan="none", absent="none").gate()
    result.stdout.fnmatch_lines(SCREEN.splitlines(), consecutive=True)
    start = next(i for i, line in enumerate(result.outlines) if " ane gates " in line)
    shown = result.outlines[start : start + len(SCREEN.splitlines())]
    assert max(map(len, shown)) <= 80


def test_the_sentences_stay_whole_in_the_report(project: Project) -> None:
    result = project.packages(absent="none").gate("-k", "placement")
    result.assert_outcomes(errors=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            f"own:absent: the artifact {project.path}/absent.mlpackage does not exist; *",
        ]
    )
    result.stdout.no_fnmatch_line("*During handling of*")


def test_details_are_a_section_of_the_failure(project: Project) -> None:
    result = project.packages(good="other").gate("-k", "fidelity")
    result.stdout.fnmatch_lines(
        [
            "*- Captured ane fidelity call -*",
            "gaussian fixed shape #? -> projection: cosine * at position 0, * dB), *, max |x| *",
        ]
    )


def test_a_fault_in_the_table_leaves_the_outcome_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no width")

    monkeypatch.setattr("pytest_ane.plugin.summary.write", fail)
    result = project.packages(good="none").gate()
    result.assert_outcomes(passed=3, deselected=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ane: the table of verdicts failed: ZeroDivisionError(*)"])


def test_a_run_without_verdicts_has_no_table(project: Project) -> None:
    result = project.packages(good="none").gate("--co")
    result.stdout.no_fnmatch_line("* ane gates *")
