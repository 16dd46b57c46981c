"""Configurations that are held against transformers, several of each family."""

from __future__ import annotations

import torch

from tests.families.decoder.oracle import Case

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
)  # fmt: skip
"""No window here reaches over a ring of the states, so that prompts go around it."""
