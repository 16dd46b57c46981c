"""A stack that is wrong on real prompts alone: red, and the message says where."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plugin.conftest import Project
from tests.plugin.projects import make_llama

NAIVE = Path(__file__).parents[2] / "benchmarks" / "naive_norm.py"
"""The llama family with a norm that squares in fp16."""


def remarks(result: pytest.RunResult) -> list[str]:
    """The last two lines of the message of `mini: behaviour failed`."""
    lines = [line.strip() for line in result.outlines]
    end = next(i for i, line in enumerate(lines) if "Captured ane behaviour" in line)
    return lines[end - 2 : end]


@pytest.mark.slow
def test_a_norm_that_squares_in_fp16_is_right_on_gaussian_probes_alone(project: Project) -> None:
    """Token 40, at position 2, overflows in every norm up to the head's, which gives zeros."""
    shutil.copy(NAIVE, project.path)
    project.llama(source=make_llama(project.path / "loud.gguf", loud=3000.0))
    project.replace('family = "llama"', 'family = "naive_norm"')
    project.replace('"gaussian", "captured"', '"gaussian"')
    result = project.gate("-k", "fidelity or behaviour", "--ane-cache=cache")
    result.assert_outcomes(passed=4, failed=1, deselected=8)
    assert remarks(result) == [
        "The worst shard on the reference's own states is head.0 (gives NaN or only zeros)",
        "The first bad position is 2 of 'counting' (logits not finite or all equal)",
    ]


@pytest.mark.slow
def test_nan_in_the_stack(project: Project) -> None:
    """Beyond fp16 an embedding is infinite and its norm NaN, which no additive mask hides."""
    project.llama(source=make_llama(project.path / "loud.gguf", loud=70000.0))
    result = project.gate("-k", "behaviour", "--ane-cache=cache")
    result.assert_outcomes(failed=1, deselected=12)
    assert remarks(result) == [
        "The worst shard on the reference's own states is L00 (gives NaN or only zeros)",
        "The first bad position is 0 of 'counting' (logits not finite or all equal)",
    ]


@pytest.mark.slow
def test_the_same_weights_with_the_family_s_own_norm_are_green(project: Project) -> None:
    project.llama(source=make_llama(project.path / "loud.gguf", loud=3000.0))
    project.gate("-k", "behaviour", "--ane-cache=cache").assert_outcomes(passed=1, deselected=12)


@pytest.mark.slow
def test_a_reference_that_does_not_say_what_is_expected(project: Project) -> None:
    """Shards that agree with it are red, and none of them is named."""
    project.llama('expect = "Paris"\n')
    result = project.gate("-k", "behaviour")
    result.assert_outcomes(failed=1, deselected=12)
    result.stdout.fnmatch_lines(
        ["*The reference is wrong: its greedy text of 'counting' is '???' and 'Paris' is expected*"]
    )
    result.stdout.no_fnmatch_line("*worst shard*")
