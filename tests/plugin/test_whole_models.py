"""Captured probes and behaviour need the model as it is: no gap, no missing block."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project


@pytest.mark.slow
@pytest.mark.drawn
def test_captured_probes_of_a_chain_with_a_gap_are_refused(project: Project) -> None:
    project.llama().replace("L00-L01", "L01")
    result = project.gate("-k", "fidelity", "--ane-cache=cache", shards="L01")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*captured probes run the model from its first block*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.slow
def test_behaviour_of_a_model_with_blocks_missing_is_refused(project: Project) -> None:
    project.llama().replace("L00-L01", "L00")
    result = project.gate("-k", "behaviour", "--ane-cache=cache")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*shards.toml leaves out L01;*the whole model only*"])


def test_without_a_head_there_is_no_behaviour_to_ask_for(project: Project) -> None:
    policy = "[models.mini.policy.behaviour]\nmin-greedy = 3\nmin-positions = 4\n"
    project.llama().replace(", head.0-head.1", "").replace(policy, "")
    result = project.gate("--co", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*test_behaviour*")
