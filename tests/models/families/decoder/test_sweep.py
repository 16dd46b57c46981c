"""Drawn configurations against transformers: whatever a family accepts, it computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.models.families.decoder.cases import smaller_layers, undecided_routers
from tests.models.families.decoder.oracle import (
    CONTEXT,
    Case,
    Converted,
    difference,
    expected,
    prompt,
    referred,
)

pytestmark = [pytest.mark.heavy, pytest.mark.drawn]

BOUND = 1e-4
_factors = st.floats(1.5, 16)
_trained = st.integers(8, 64)


def _rope() -> st.SearchStrategy[dict[str, Any]]:
    def table(kind: str, **values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        theta = st.floats(50, 1e6)
        return st.fixed_dictionaries({"rope_type": st.just(kind), "rope_theta": theta, **values})

    return st.one_of(
        table("default"),
        table("linear", factor=_factors),
        table("dynamic", factor=_factors),
        table("yarn", factor=_factors, original_max_position_embeddings=_trained),
        table(
            "llama3",
            factor=_factors,
            low_freq_factor=st.floats(0.5, 2),
            high_freq_factor=st.floats(2.5, 8),
            original_max_position_embeddings=_trained,
        ),
    )


_window = st.integers(1, 40)
_maybe_window = st.one_of(st.none(), _window)
_flag = st.booleans()
_multiplier = st.floats(0.2, 4)
_cap = st.one_of(st.none(), st.floats(1, 60))
_kinds = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=3, max_size=3)
_turns = st.lists(st.integers(0, 1), min_size=3, max_size=3)
_switched = {"use_sliding_window": _flag, "sliding_window": _window}
_gemma = {
    "sliding_window": _window,
    "layer_types": _kinds,
    "query_pre_attn_scalar": st.integers(1, 64),
    "final_logit_softcapping": _cap,
    "attention_bias": _flag,
}
_proportional = st.fixed_dictionaries(
    {
        "sliding_attention": st.just({"rope_type": "default", "rope_theta": 100.0}),
        "full_attention": st.fixed_dictionaries(
            {
                "rope_type": st.just("proportional"),
                "rope_theta": st.floats(50, 1e6),
                "partial_rotary_factor": st.floats(0.1, 1),
                "factor": _factors,
            }
        ),
    }
)
_experts = {"num_experts_per_tok": st.integers(1, 3)}
_biases = {"attention_bias": _flag, "mlp_bias": _flag}
OPTIONS: Mapping[tuple[str, str], Mapping[str, st.SearchStrategy[Any]]] = {
    ("llama", "Llama"): {"rope_parameters": _rope(), **_biases},
    ("mistral", "Mistral"): {"rope_parameters": _rope(), "sliding_window": _maybe_window},
    ("qwen2", "Qwen2"): {"rope_parameters": _rope(), "max_window_layers": st.integers(0, 3),
                         **_switched},
    ("qwen3", "Qwen3"): {"rope_parameters": _rope(), "layer_types": _kinds,
                         "attention_bias": _flag, "sliding_window": _window,
                         "use_sliding_window": st.just(True)},
    ("mixtral", "Mixtral"): {"rope_parameters": _rope(), "sliding_window": _maybe_window,
                             **_experts, "num_local_experts": st.integers(3, 6)},
    ("qwen2_moe", "Qwen2Moe"): {
        "rope_parameters": _rope(), "norm_topk_prob": _flag, "qkv_bias": _flag,
        "decoder_sparse_step": st.integers(1, 2), "moe_intermediate_size": st.integers(1, 20),
        "shared_expert_intermediate_size": st.integers(1, 20), **_experts,
        "num_experts": st.integers(3, 6), "max_window_layers": st.integers(0, 3), **_switched,
    },
    ("qwen3_moe", "Qwen3Moe"): {
        "rope_parameters": _rope(), "norm_topk_prob": _flag, "attention_bias": _flag,
        "decoder_sparse_step": st.integers(1, 2), "moe_intermediate_size": st.integers(1, 20),
        **_experts, "num_experts": st.integers(3, 6), **_switched,
    },
    ("gemma2", "Gemma2"): _gemma | {"attn_logit_softcapping": _cap},
    ("gemma3", "Gemma3Text"): _gemma,
    ("gemma4", "Gemma4Text"): {
        "sliding_window": _window, "layer_types": _kinds, "attention_k_eq_v": _flag,
        "final_logit_softcapping": _cap, "global_head_dim": st.sampled_from([4, 8, 14]),
        "num_global_key_value_heads": st.just(1), "hidden_size_per_layer_input": st.just(0),
        "enable_moe_block": st.just(True), "num_experts": st.sampled_from([8, 16]),
        "top_k_experts": st.integers(1, 8), "moe_intermediate_size": st.integers(1, 20),
        "num_hidden_layers": st.just(3), "rope_parameters": _proportional,
    },
    ("phi3", "Phi3"): {"sliding_window": _maybe_window},
    ("smollm3", "SmolLM3"): {"rope_parameters": _rope(), "no_rope_layers": _turns, **_switched,
                             **_biases},
    ("granite", "Granite"): {
        "rope_parameters": _rope(), "embedding_multiplier": _multiplier,
        "logits_scaling": _multiplier, "residual_multiplier": _multiplier,
        "attention_multiplier": st.floats(0.05, 1), **_biases,
    },
    ("zaya", "Zaya"): {
        "rope_parameters": st.fixed_dictionaries({"hybrid": _rope(), "hybrid_sliding": _rope()}),
        "layer_types": st.lists(st.sampled_from(["hybrid", "hybrid_sliding"]), min_size=3,
                                max_size=3),
        "sliding_window": _window, "moe_intermediate_size": st.integers(1, 20),
        "num_experts": st.integers(1, 6), "router_hidden_size": st.integers(1, 20),
    },
}  # fmt: skip
_OWN_HEAD = (
    "llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma4", "zaya",
)  # fmt: skip
_PREPARED: Mapping[str, Mapping[str, Any]] = {
    "gemma4": {"prepare": smaller_layers},
    "zaya": {"prepare": undecided_routers, "layers": 2},
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any family, with sizes and options of any kind that it has."""
    family, kind = draw(st.sampled_from(sorted(OPTIONS)))
    keys, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head = 2 * draw(st.integers(2, 6))
    sizes: dict[str, Any] = {
        "num_attention_heads": keys * group,
        "num_key_value_heads": keys,
        "hidden_size": keys * group * head,
        "intermediate_size": draw(st.integers(1, 40)),
        "tie_word_embeddings": draw(_flag),
        "rms_norm_eps": draw(st.floats(1e-7, 1e-3)),
    }
    if family in _OWN_HEAD:
        sizes["head_dim"] = 2 * draw(st.integers(2, 6))
    options = {name: draw(strategy) for name, strategy in OPTIONS[family, kind].items()}
    return Case("drawn", family, kind, sizes | options, **_PREPARED.get(family, {}))


def forget_layer_types(file: Path) -> None:
    """Before transformers 4.53 files did not say which layers have a window."""
    config = json.loads(file.read_text())
    config.pop("layer_types", None)
    file.write_text(json.dumps(config))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), _flag, st.integers(0, 99), st.lists(st.integers(1, 8), min_size=6, max_size=12))
def test_whatever_is_accepted_is_computed(
    case: Case, older: bool, seed: int, calls: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        right = case.save(Path(folder), seed)
        if older and "layer_types" not in case.changes:
            forget_layer_types(Path(folder) / "config.json")
        stateless, stateful = (case.open(Path(folder), stateful=s) for s in (False, True))
        ids = prompt(min(sum(calls), CONTEXT), seed)
        logits = expected(right, ids)
        # A network whose own float32 logits are that far off can tell nothing of ours.
        assume(difference(logits, expected(right.double(), ids)) <= BOUND / 4)
        shards, start, parts = Converted(stateful), 0, []
        for count in calls:
            if part := ids[start : start + count]:
                parts.append(shards(part))
            start += count
        for actual in (referred(stateless, ids), np.concatenate(parts)):
            assert difference(actual, logits) <= BOUND
