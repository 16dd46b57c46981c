"""Fixtures for gates of one's own, and a project's fixtures of similar names."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

OWN_GATE = """
import pytest

from pytest_ane.gates.verdict import Figure, Finding, Verdict

@pytest.mark.gate
def test_outputs(
    ane_shard, ane_artifact, ane_program, ane_backend, ane_probes, ane_reference, ane_gate
):
    assert ane_artifact.path.name == f"{ane_shard.id}.mlpackage"
    assert ane_backend.name == "cpu"
    assert [op.op for op in ane_program.program.functions["main"].walk()][-1] == "conv"
    assert len(ane_reference) == len({case.name for case in ane_reference}) == ane_probes.count
    assert ane_backend.load(ane_artifact.path).predict(ane_reference[0].calls[0])
    ane_gate(
        Verdict("taste", "own:good", (Figure("n", 3),), (Finding("failed", "It is too good"),))
    )
"""


def test_a_gate_of_ones_own_has_all_fixtures(project: Project) -> None:
    project.packages(good="none").pytester.makepyfile(OWN_GATE)
    result = project.gate("-k", "test_outputs")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "own:good: taste failed",
            "  - It is too good",
            "FAILED   own:good  taste       It is too good",
        ]
    )


@pytest.mark.drawn
@pytest.mark.slow
def test_a_project_may_have_fixtures_called_backend_shard_artifact(project: Project) -> None:
    """Names that web, database and build projects use; the shipped gates do not see them."""
    names = ("backend", "shard", "artifact", "chain", "gate", "evidence")
    fixtures = "".join(f"@pytest.fixture\ndef {name}(): return 'own {name}'\n" for name in names)
    project.pytester.makeconftest(f"import pytest\n{fixtures}")
    asserted = " and ".join(f"{name} == 'own {name}'" for name in names)
    project.pytester.makepyfile(f"def test_own({', '.join(names)}): assert {asserted}")
    project.pytester.runpytest_inprocess().assert_outcomes(passed=1)
    result = project.llama().gate("-v")
    result.assert_outcomes(passed=13, deselected=1)
    result.stdout.fnmatch_lines(["*test_fidelity[[]mini:L01[]] PASSED*"])


def test_without_shards_a_fixture_says_what_it_needs(project: Project) -> None:
    project.pytester.makepyfile("def test_own(ane_backend): pass")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["The fixture 'ane_backend' needs shards; run pytest with --ane-shards or*"]
    )


def test_a_test_that_takes_shards_is_told_to_be_a_gate(project: Project) -> None:
    project.packages(good="none").pytester.makepyfile("def test_own(ane_shard): pass")
    result = project.run("--ane-shards=all", "-k", "test_own")
    result.assert_outcomes(errors=1, deselected=4)
    result.stdout.fnmatch_lines(
        ["The fixture 'ane_shard' is for gates; mark this test with @pytest.mark.gate."]
    )
