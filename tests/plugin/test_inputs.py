"""`[models.NAME.inputs.INPUT]` in a run: what own packages are probed at."""

from __future__ import annotations

import json

from tests.plugin.conftest import Project

TABLE = '[models.own.shard."*".inputs.{name}]\nkind = "uniform"\nrange = [1.0, 2.0]\n'
FIDELITY = ("--ane-shards=all", "-m", "gate", "-k", "fidelity")


def test_a_verdict_lists_what_an_input_was_drawn_from(project: Project) -> None:
    project.packages(TABLE.format(name="x"), good="none")
    project.run(*FIDELITY, "--ane-report=report.jsonl").assert_outcomes(passed=1, deselected=3)
    report = (project.path / "report.jsonl").read_text()
    assert "uniform: as the manifest says" in report
    assert all(map(json.loads, report.splitlines()))


def test_an_input_that_the_package_does_not_have_is_one_sentence(project: Project) -> None:
    project.packages(TABLE.format(name="xs"), good="none")
    result = project.run(*FIDELITY)
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        ["*good.mlpackage: has no input 'xs', which the manifest names; inputs: x; did you mean*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
