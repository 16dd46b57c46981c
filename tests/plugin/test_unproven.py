"""`--ane-unproven` and its ini twin: what becomes of a gate that could compare nothing."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

ALLOWED = '[models.own.policy]\nunproven = "allow"\n'


@pytest.mark.parametrize(
    ("options", "more", "passed", "header"),
    [
        ((), "", False, "ane: *"),
        ((), ALLOWED, True, "ane: *"),
        (("--ane-unproven=allow",), "", True, "ane: *unproven allowed*"),
        (("--ane-unproven=fail",), ALLOWED, False, "ane: *unproven fails*"),
    ],
)
def test_unproven_fails_unless_something_else_is_said(
    project: Project, options: tuple[str, ...], more: str, passed: bool, header: str
) -> None:
    """Allowed it passes, but is never called passed."""
    result = project.packages(more, weightless="none").gate("-k", "compression", *options)
    result.assert_outcomes(passed=int(passed), failed=int(not passed), deselected=3)
    row = "unproven" if passed else "UNPROVEN"
    result.stdout.fnmatch_lines(
        [header, f"{row} own:weightless *compression *", "passed: compression 0/1"]
    )


def test_allowing_unproven_allows_no_failure(project: Project) -> None:
    result = project.packages(nan="none").gate("-k", "fidelity", "--ane-unproven=allow")
    result.assert_outcomes(failed=1, deselected=3)
