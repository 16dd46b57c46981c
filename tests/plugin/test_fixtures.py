"""Fixtures for gates of one's own; and what projects call the same is left alone."""

from __future__ import annotations

from tests.plugin.conftest import Project

OWN_GATE = """
import pytest
from pytest_ane.core.verdict import Verdict

@pytest.mark.gate
def test_outputs(shard, artifact, program, backend, probes, reference, gate):
    assert artifact.path.name == f"{shard.id}.mlpackage"
    assert backend.name == "cpu"
    assert [op.op for op in program.program.functions["main"].walk()][-1] == "conv"
    assert len(reference) == len(set(case.name for case in reference)) == probes.count
    assert backend.load(artifact.path).predict(reference[0].calls[0])
    gate(Verdict("fidelity", "own:good", "failed", "looked at", ("It is too good.",), {"n": 3}))
"""


def test_a_gate_of_ones_own_has_all_fixtures(project: Project) -> None:
    project.packages(good="none").pytester.makepyfile(OWN_GATE)
    result = project.gate("-k", "test_outputs")
    result.assert_outcomes(failed=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "own:good: fidelity failed",
            "  - It is too good.",
            "failed   own:good  fidelity    looked at",
        ]
    )


def test_fixtures_of_the_same_name_are_left_alone(project: Project) -> None:
    project.pytester.makepyfile(
        "import pytest\n"
        "@pytest.fixture\n"
        "def shard(): return 'a database shard'\n"
        "def test_own(shard): assert shard == 'a database shard'\n"
        "@pytest.mark.parametrize('chain', [None, 1])\n"
        "def test_chain(chain): pass\n"
    )
    project.pytester.runpytest_inprocess().assert_outcomes(passed=3)
    project.packages(good="none")
    project.run("--ane-shards=all").assert_outcomes(passed=6, deselected=1)


def test_without_shards_a_fixture_says_what_it_needs(project: Project) -> None:
    project.pytester.makepyfile("def test_own(backend): pass")
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "The fixture 'backend' needs shards; run pytest with --ane-shards or --ane-package.",
        ]
    )


def test_a_test_that_takes_shards_is_told_to_be_a_gate(project: Project) -> None:
    project.packages(good="none").pytester.makepyfile("def test_own(shard): pass")
    result = project.run("--ane-shards=all", "-k", "test_own")
    result.assert_outcomes(errors=1, deselected=4)
    result.stdout.fnmatch_lines(
        [
            "The fixture 'shard' is for gates; mark this test with @pytest.mark.gate.",
        ]
    )


def test_without_the_option_failures_look_as_they_always_do(project: Project) -> None:
    project.pytester.makeconftest(
        "import pytest\n@pytest.fixture\ndef broken():\n    return {}['key']\n"
    )
    project.pytester.makepyfile(
        "from pytest_ane.core.errors import SourceError\n"
        "def test_fixture(broken): pass\n"
        "def test_own():\n    raise SourceError('no such file')\n"
    )
    result = project.pytester.runpytest_inprocess()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines([">*return {}[[]'key'[]]", ">*raise SourceError('no such file')"])
    result.stdout.no_fnmatch_line("*pytest_ane/plugin/*")
