"""`--ane-min-cosine` and its ini twin override fidelity policies."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project, refused


@pytest.fixture
def unlike(project: Project) -> Project:
    """A package held against one with other weights."""
    return project.packages(good="other")


def test_the_policys_own_threshold_fails(unlike: Project) -> None:
    result = unlike.gate("-k", "fidelity")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*live probes are below min-cosine = 0.97*"])
    result.stdout.no_fnmatch_line("ane: *min-cosine*")


def test_the_option_overrides_and_is_shown(unlike: Project) -> None:
    result = unlike.gate("-k", "fidelity", "--ane-min-cosine=-1")
    result.assert_outcomes(passed=1, deselected=3)
    result.stdout.fnmatch_lines(["ane: all · *min-cosine -1 for all*"])


def test_a_higher_threshold_fails_what_the_policy_lets_pass(project: Project) -> None:
    project.packages(good="float32")
    project.gate("-k", "fidelity").assert_outcomes(passed=1, deselected=3)
    project.gate("-k", "fidelity", "--ane-min-cosine=1").assert_outcomes(failed=1, deselected=3)


def test_single_shards_have_thresholds_of_their_own(project: Project) -> None:
    project.packages(good="other", other="good")
    result = project.gate("-k", "fidelity", "--ane-min-cosine=0.9, own:good:-1")
    result.assert_outcomes(passed=1, failed=1, deselected=5)
    result.stdout.fnmatch_lines(["ane: *min-cosine 0.9, own:good:-1*"])
    result.stdout.fnmatch_lines(["*below min-cosine = 0.9:*", "passed   own:good *"])
    result = project.gate("-k", "fidelity", "--ane-min-cosine=g*:-1,o*:-1")
    result.assert_outcomes(passed=2, deselected=5)


def test_the_last_term_that_names_a_shard_holds(project: Project) -> None:
    project.packages(good="other")
    result = project.gate("-k", "fidelity", "--ane-min-cosine=good:-1,0.99")
    result.assert_outcomes(failed=1, deselected=3)


def test_it_overrides_thresholds_of_outputs_too(unlike: Project) -> None:
    manifest = unlike.path / "shards.toml"
    names = "[models.own.policy.fidelity]\nmin-cosine = -1\noutputs.projection.min-cosine = 1\n"
    manifest.write_text(manifest.read_text() + names)
    unlike.gate("-k", "fidelity").assert_outcomes(failed=1, deselected=3)
    unlike.gate("-k", "fidelity", "--ane-min-cosine=-1").assert_outcomes(passed=1, deselected=3)


def test_a_shard_that_is_not_there(unlike: Project) -> None:
    refused(
        unlike.gate("--ane-min-cosine=god:0.9"),
        "--ane-min-cosine: 'god' matches no shard; nearest: good.",
    )
