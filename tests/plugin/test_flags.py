"""pytest's own flags do with gates what they do with any test."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

SECTION = "=*= ane gates =*="


@pytest.fixture
def mixed(project: Project) -> Project:
    """Two packages: one good, one whose output is NaN."""
    return project.packages(good="none", nan="none")


def test_quiet_keeps_the_table_and_drops_the_header(mixed: Project) -> None:
    result = mixed.gate("-q")
    result.stdout.no_fnmatch_line("ane: *")
    result.stdout.fnmatch_lines([SECTION, "FAILED   own:nan   fidelity *"])


def test_twice_quiet_drops_the_table(mixed: Project) -> None:
    result = mixed.gate("-qq")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line(SECTION)


def test_exit_at_the_first_failure(mixed: Project) -> None:
    result = mixed.gate("-x")
    result.assert_outcomes(passed=3, failed=1, deselected=1)
    result.stdout.fnmatch_lines([SECTION, "FAILED   own:nan   fidelity *", "*stopping after 1 *"])


def test_at_most_so_many_failures(project: Project) -> None:
    project.packages(nan="none", ineligible="none", weightless="none")
    result = project.gate("--maxfail=2")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*stopping after 2 failures*"])


def test_last_failed_runs_what_failed(mixed: Project) -> None:
    mixed.gate().assert_outcomes(passed=5, failed=1, deselected=1)
    result = mixed.gate("--lf")
    result.assert_outcomes(failed=1, deselected=6)
    result.stdout.fnmatch_lines(["FAILED   own:nan  fidelity *", "passed: fidelity 0/1"])


def test_an_id_from_the_screen_can_be_deselected(mixed: Project) -> None:
    result = mixed.gate("--deselect=gates/test_fidelity.py::test_fidelity[own:nan]")
    result.assert_outcomes(passed=5, deselected=2)


def test_no_header(mixed: Project) -> None:
    result = mixed.gate("--no-header")
    result.stdout.no_fnmatch_line("ane: *")
    result.stdout.fnmatch_lines([SECTION])


def test_no_summary(mixed: Project) -> None:
    result = mixed.gate("--no-summary")
    result.stdout.fnmatch_lines(["ane: *"])
    result.stdout.no_fnmatch_line(SECTION)


def test_verbose_shows_ids_and_every_passed_verdict(project: Project) -> None:
    good = project.workshop.packages["good"]
    shards = (f'[models.own.shard.S{i}]\nartifact = "{good}"\nreference = "none"' for i in range(5))
    project.manifest("\n".join(shards))
    short, long = project.gate(), project.gate("-v")
    short.stdout.fnmatch_lines(
        ["passed   own:S3  placement *", "... and 3 more passed (-v shows *"]
    )
    short.stdout.no_fnmatch_line("passed   own:S4 *")
    long.stdout.fnmatch_lines(["gates/test_fidelity.py::test_fidelity[[]own:S4[]] PASSED *"])
    long.stdout.fnmatch_lines(["passed   own:S4  placement *", "passed: *"])
