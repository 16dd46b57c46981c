"""Gates of family `gemma4`: the example's shards, and packs that no position of a probe chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.manifest.load import load
from pytest_ane.models.families.gemma4.config import starts_whole
from tests.plugin.conftest import Project, refused

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


def test_the_example_names_the_whole_model() -> None:
    model = load(EXAMPLE).models[0]
    assert len(model.ids) == 30 * 9 + 8
    assert starts_whole(model.ids)


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
