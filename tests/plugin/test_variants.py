"""A family with several forms of its model: the verdict's line says which one was computed."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

SMALL = """
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
PROMPT = """
[models.small.policy.behaviour]
min-positions = 5

[[models.small.prompts]]
name = "ids"
ids = [1, 2, 100, 7, 5, 33]
greedy = 4
"""


@pytest.mark.slow
def test_the_verdict_s_line_names_the_variant(project: Project) -> None:
    notes = SMALL.replace('family = "zaya"', 'family = "zaya"\nvariant = "notes"')
    result = project.manifest(notes).gate("-k", "fidelity", "--ane-cache=cache", shards="L03")
    result.stdout.fnmatch_lines(["passed   small:L03 notes synthetic  fidelity *"])
    # The other form is built and held against its own reference, whatever is in the cache.
    result = project.manifest(SMALL).gate("-k", "fidelity", "--ane-cache=cache", shards="L03")
    result.stdout.fnmatch_lines(["passed   small:L03 published synthetic  fidelity *"])
    strict = SMALL.replace("min-cosine = 0.99", "min-cosine = 1.0")
    result = project.manifest(strict).gate("-k", "fidelity", "--ane-cache=cache", shards="L03")
    result.stdout.fnmatch_lines(["*small:L03: fidelity failed; variant published; weights are*"])


@pytest.mark.slow
def test_the_router_s_state_runs_through_the_whole_stack(project: Project) -> None:
    result = project.manifest(SMALL + PROMPT).gate("-rA", "--ane-cache=cache")
    result.assert_outcomes(passed=16)
    result.stdout.fnmatch_lines(["passed   small published synthetic *behaviour *"])
