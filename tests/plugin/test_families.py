"""Gates of family `gemma4`: the example's shards, and packs that no position of a probe chooses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.plugin.conftest import Project, refused
from tests.plugin.projects import make_llama

EXAMPLE = Path(__file__).parents[2] / "examples" / "gemma4.toml"
SMALL = """
[models.small]
family = "gemma4"
shards = "L{00-00}.attn, L00.p{0-7}"
max-tokens = 4
context = 16

[models.small.source]
seeded = 7
config = { num_hidden_layers = 2, hidden_size = 64, intermediate_size = 64, moe_intermediate_size = 32, num_experts = 16, top_k_experts = 2, num_attention_heads = 4, head_dim = 16, num_key_value_heads = 2, global_head_dim = 32, num_global_key_value_heads = 1, sliding_window = 4, vocab_size = 256 }

[models.small.probes]
kinds = ["gaussian"]
count = 2
seed = 20260101

[models.small.policy.fidelity]
min-cosine = 0.99
min-live-probes = 1
"""  # noqa: E501


@pytest.mark.slow
def test_a_pack_that_is_not_chosen_agrees_with_its_reference(project: Project) -> None:
    result = project.manifest(SMALL).gate(shards="L00.attn,L00.p0,L00.p3,L00.p7")
    result.assert_outcomes(passed=12, deselected=1)
    result.stdout.fnmatch_lines(["passed   small:L00.p0 synthetic    fidelity    *cosine*"])
    verbose = project.gate("-rA", shards="L00.p0")
    verbose.stdout.fnmatch_lines(["probe * zeros *"])


WHOLE = SMALL.replace("p{0-7}", "p{0-7}, head.0").replace("layers = 2", "layers = 1")
PROMPT = """
[models.small.policy.behaviour]
min-positions = 2

[[models.small.prompts]]
name = "ids"
ids = {ids}
greedy = 4
"""


@pytest.mark.slow
def test_behaviour_of_synthetic_weights(project: Project) -> None:
    """Prompts are ids, the text is ids as well, and most packs are idle at some position."""
    project.manifest(WHOLE + PROMPT.format(ids=[1, 2, 100]))
    result = project.gate("-k", "behaviour", "-rA", "--ane-cache=cache")
    result.assert_outcomes(passed=1, deselected=30)
    result.stdout.fnmatch_lines(["ids *100.0%*", "ids *4 * '* * * *'"])
    project.manifest(WHOLE + PROMPT.format(ids=[1, 256]))
    result = project.gate("-k", "behaviour", "--ane-cache=cache")
    result.stdout.fnmatch_lines(["*has token 256, and the model's vocabulary ends at 255*"])
    project.manifest(WHOLE + PROMPT.format(ids=[1] * 13))
    result = project.gate("-k", "behaviour", "--ane-cache=cache")
    result.stdout.fnmatch_lines(["*has 13 tokens; with 4 greedy ones it must fit context = 16."])


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_shard_that_the_family_does_not_know(project: Project, workers: tuple[str, ...]) -> None:
    project.manifest(SMALL.replace("p{0-7}", "p8"))
    refused(project.gate(*workers), "small: Family 'gemma4' has no shard 'L00.p8'; there are *")


# A family with several forms of its model: the verdict's line says which one was computed.

ZAYA = """
[models.small]
family = "zaya"
shards = "L{00-03}, head.0"
max-tokens = 4
context = 16

[models.small.source]
seeded = 7
config = { num_hidden_layers = 4, hidden_size = 64, num_attention_heads = 4, num_query_groups = 2, head_dim = 16, num_experts = 4, ffn_hidden_size = 64, zaya_mlp_expansion = 32, vocab_size = 256 }

[models.small.probes]
kinds = ["gaussian"]
count = 2
seed = 20260101

[models.small.policy.fidelity]
min-cosine = 0.99
min-live-probes = 1
"""  # noqa: E501


@pytest.mark.slow
def test_the_verdict_s_line_names_the_variant(project: Project) -> None:
    notes = ZAYA.replace('family = "zaya"', 'family = "zaya"\nvariant = "notes"')
    result = project.manifest(notes).gate("-vk", "fidelity", "--ane-cache=cache", shards="L03")
    row = "passed   small:L03 notes synthetic  fidelity *"
    result.stdout.fnmatch_lines([row, "*reference: same module*"])
    # The other form is built and held against its own reference, whatever is in the cache.
    result = project.manifest(ZAYA).gate("-vk", "fidelity", "--ane-cache=cache", shards="L03")
    result.stdout.fnmatch_lines(["passed   small:L03 published synthetic  fidelity *"])
    result.stdout.no_fnmatch_line("*same module*")
    strict = ZAYA.replace("min-cosine = 0.99", "min-cosine = 1.0")
    result = project.manifest(strict).gate("-k", "fidelity", "--ane-cache=cache", shards="L03")
    result.stdout.fnmatch_lines(["*small:L03: fidelity failed; variant published; weights are*"])


# Captured probes and behaviour need the model as it is: no gap, no missing block.


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


# A stack that is wrong on real prompts alone: red, and the message says where.

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
def test_the_same_weights_with_the_family_s_own_norm_are_green(project: Project) -> None:
    project.llama(source=make_llama(project.path / "loud.gguf", loud=3000.0))
    project.gate("-k", "behaviour", "--ane-cache=cache").assert_outcomes(passed=1, deselected=12)
