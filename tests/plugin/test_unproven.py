"""`--ane-unproven` and its ini twin: what becomes of a gate that could compare nothing."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

ALLOWED = '[models.own.policy]\nunproven = "allow"\n'


def compression(project: Project, *options: str, more: str = "") -> pytest.RunResult:
    """Ask for the compression of a package that has no weights."""
    return project.packages(more, weightless="none").gate("-k", "compression", *options)


def test_unproven_fails_unless_something_else_is_said(project: Project) -> None:
    result = compression(project)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "own:weightless: compression unproven",
            "  - The program has no weights, so there was nothing to check; if it needs none, *",
            "UNPROVEN own:weightless  compression *",
        ]
    )


def test_allowed_it_passes_but_is_never_called_passed(project: Project) -> None:
    result = compression(project, "--ane-unproven=allow")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "ane: *unproven allowed*",
            "unproven own:weightless *",
            "passed: compression 0/1",
        ]
    )


def test_the_policy_allows_it(project: Project) -> None:
    compression(project, more=ALLOWED).assert_outcomes(passed=1, deselected=3)


def test_the_option_overrides_the_policy(project: Project) -> None:
    result = compression(project, "--ane-unproven=fail", more=ALLOWED)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["ane: *unproven fails*"])


def test_the_ini_twin_and_the_command_line_over_it(project: Project) -> None:
    project.pytester.makeini("[pytest]\nane_unproven = allow\n")
    compression(project).assert_outcomes(passed=1, deselected=3)
    compression(project, "--ane-unproven=fail").assert_outcomes(failed=1, deselected=3)


def test_allowing_unproven_allows_no_failure(project: Project) -> None:
    result = project.packages(nan="none").gate("-k", "fidelity", "--ane-unproven=allow")
    result.assert_outcomes(failed=1, deselected=3)


def test_other_words_are_usage_errors(project: Project) -> None:
    project.packages(good="none")
    assert project.gate("--ane-unproven=yes").ret == pytest.ExitCode.USAGE_ERROR
    project.pytester.makeini("[pytest]\nane_unproven = yes\n")
    result = project.gate()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: ane_unproven = yes: give 'fail' or 'allow'."])
