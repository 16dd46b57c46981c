"""Configurations that are held against transformers, several of each family."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.families.decoder.oracle import Case

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.5],
    "long_factor": [4.0, 4.0],
}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 5,
    "num_hidden_layers": 2,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 16,
    "top_k_experts": 3,
    "moe_intermediate_size": 12,
}
_GEMMA4_ROPE = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.5,
        "rope_theta": 900.0,
        "factor": 2.0,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_ZAYA = {
    "head_dim": 8, "moe_intermediate_size": 12, "num_experts": 4, "router_hidden_size": 6,
}  # fmt: skip


def smaller_layers(model: Any) -> None:
    """Gemma 4's layers times 0.7, for a factor of 1 would show nothing."""
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.mul_(0.7)


def undecided_routers(model: Any) -> None:
    """Routers that choose now one expert, now another, or none; attention that is not even.

    The last balancing bias stays -1, for transformers 5.23.0 puts that there whenever it loads.
    """
    for layer in model.model.layers:
        gate = layer.mlp.gate
        gate.balancing_biases[:-1] = torch.randn_like(gate.balancing_biases[:-1]) * 0.05 - 1
        for inner in (gate.router_mlp.fc1, gate.router_mlp.fc2, gate.router_mlp.out_proj):
            inner.weight.mul_(3)
        layer.self_attn.qk_norm.temp.add_(1)


CASES = (
    Case("llama", "llama", "Llama"),
    Case("llama-bf16", "llama", "Llama", dtype=torch.bfloat16),
    Case("llama-tied-mqa-biases", "llama", "Llama", {
        "tie_word_embeddings": True, "num_key_value_heads": 1, "attention_bias": True,
        "mlp_bias": True,
    }),
    Case("llama-mha-head-dim", "llama", "Llama", {"num_key_value_heads": 4, "head_dim": 10}),
    Case("llama-llama3", "llama", "Llama", {"rope_parameters": _LLAMA3}),
    Case("llama-linear", "llama", "Llama", {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    }),
    Case("llama-yarn", "llama", "Llama", {"rope_parameters": _YARN}),
    Case("llama-yarn-options", "llama", "Llama", {
        "rope_parameters": _YARN | {
            "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.4,
            "truncate": False,
        },
    }),
    Case("llama-dynamic", "llama", "Llama", {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0},
    }),
    Case("mistral-window", "mistral", "Mistral", {"sliding_window": 5}),
    Case("mistral-no-window", "mistral", "Mistral", {"sliding_window": None, "head_dim": 16}),
    Case("qwen2", "qwen2", "Qwen2"),
    Case("qwen2-window-tied", "qwen2", "Qwen2", {
        "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
        "tie_word_embeddings": True,
    }),
    Case("qwen3", "qwen3", "Qwen3", {"head_dim": 16}),
    Case("qwen3-yarn-biases", "qwen3", "Qwen3", {
        "head_dim": 20, "attention_bias": True, "rope_parameters": _YARN,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "use_sliding_window": True, "sliding_window": 6, "tie_word_embeddings": True,
    }),
    Case("mixtral", "mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Case("mixtral-window", "mixtral", "Mixtral", {
        "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 5,
    }),
    Case("qwen3-moe", "qwen3_moe", "Qwen3Moe", {
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 8,
    }),
    Case("qwen3-moe-normalized-steps", "qwen3_moe", "Qwen3Moe", {
        "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 12, "head_dim": 8,
        "norm_topk_prob": True, "decoder_sparse_step": 2, "num_hidden_layers": 4,
        "mlp_only_layers": [3],
    }),
    Case("qwen2-moe", "qwen2_moe", "Qwen2Moe", {
        "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 20,
    }),
    Case("qwen2-moe-window-steps", "qwen2_moe", "Qwen2Moe", {
        "num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 8, "norm_topk_prob": True, "decoder_sparse_step": 2,
        "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 5,
        "qkv_bias": False, "tie_word_embeddings": True,
    }),
    Case("gemma2", "gemma2", "Gemma2", {
        "head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 20,
    }),
    Case("gemma2-caps", "gemma2", "Gemma2", {
        "head_dim": 10, "sliding_window": 5, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": None,
    }),
    Case("gemma3", "gemma3", "Gemma3Text", {
        "head_dim": 16, "sliding_window": 5, "num_hidden_layers": 7,
    }),
    Case("gemma3-linear-bf16", "gemma3", "Gemma3Text", {
        "head_dim": 12, "num_key_value_heads": 1, "sliding_window": 9,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": _GEMMA3_ROPE, "final_logit_softcapping": 3.0,
    }, torch.bfloat16),
    Case("gemma4", "gemma4", "Gemma4Text", _GEMMA4, prepare=smaller_layers),
    Case("gemma4-values-cap-bf16", "gemma4", "Gemma4Text", _GEMMA4 | {
        "attention_k_eq_v": False, "final_logit_softcapping": 3.0, "num_experts": 8,
        "top_k_experts": 1, "rope_parameters": _GEMMA4_ROPE, "num_key_value_heads": 1,
    }, torch.bfloat16, smaller_layers),
    Case("gemma4-untied", "gemma4", "Gemma4Text", _GEMMA4 | {
        "tie_word_embeddings": False, "num_global_key_value_heads": 4, "global_head_dim": 20,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "num_hidden_layers": 3, "top_k_experts": 16, "use_bidirectional_attention": "vision",
    }, prepare=smaller_layers),
    Case("phi3-window", "phi3", "Phi3", {"sliding_window": 6}),
    Case("phi3-longrope", "phi3", "Phi3", {
        "rope_parameters": _LONGROPE, "original_max_position_embeddings": 96,
        "tie_word_embeddings": True,
    }),
    Case("smollm3", "smollm3", "SmolLM3", {"num_hidden_layers": 5}),
    Case("smollm3-window-biases", "smollm3", "SmolLM3", {
        "no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 4,
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False,
    }),
    Case("granite", "granite", "Granite", {
        "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
    }),
    Case("granite-biases-tied", "granite", "Granite", {
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
        "residual_multiplier": 0.5,
    }),
    Case("zaya", "zaya", "Zaya", _ZAYA, prepare=undecided_routers, layers=2),
    Case("zaya-untied-mqa-bf16", "zaya", "Zaya", _ZAYA | {
        "tie_word_embeddings": False, "num_key_value_heads": 1, "num_experts": 3,
    }, torch.bfloat16, undecided_routers, 2),
    Case("zaya-window", "zaya", "Zaya", _ZAYA | {
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"], "sliding_window": 5,
        "head_dim": 12, "num_experts": 7,
    }, prepare=undecided_routers, layers=2),
    Case("zaya-angles", "zaya", "Zaya", _ZAYA | {
        "num_hidden_layers": 2, "num_key_value_heads": 4, "num_experts": 1,
        "rope_parameters": {"hybrid": {
            "rope_type": "linear", "factor": 4.0, "rope_theta": 300.0,
        }},
    }, prepare=undecided_routers, layers=2),
)  # fmt: skip
"""No window here reaches over a ring of the states, so that prompts go around it."""
