"""Keys of configurations: those that change a result, and what GGUF calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "alibi": (False,),
    "attention_bias": (False,),
    "attention_chunk_size": (None,),
    "attention_multiplier": (),
    "attention_out_bias": (False,),
    "attn_temperature_tuning": (None, False, 0),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "dim_model_base": (),
    "embedding_multiplier": (1.0,),
    "final_logit_softcapping": (None,),
    "hidden_size_per_layer_input": (None, 0),
    "kv_lora_rank": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (1.0,),
    "mlp_bias": (False,),
    "n_routed_experts": (None, 0),
    "no_rope_layer_interval": (),
    "no_rope_layers": (None,),
    "num_experts": (None, 0),
    "num_kv_shared_layers": (None, 0),
    "num_local_experts": (None, 0),
    "parallel_attention": (False,),
    "per_layer_config": (None, {}),
    "partial_rotary_factor": (1.0,),
    "position_embedding_type": ("rope", "rotary"),
    "q_lora_rank": (None,),
    "qk_layernorm": (False,),
    "quantization_config": (None,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1.0,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "rope_local_base_freq": (),
    "scale_depth": (),
    "scale_emb": (),
    "sliding_window": (None, False),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
    "use_qkv_bias": (False,),
}
"""Keys of configurations that change a result, with the values at which they do not."""

GGUF_KEYS: Mapping[str, str] = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "vocab_size": "vocab_size",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
"""What the keys of `config.json` are called in GGUF, behind the architecture's name."""

GGUF_ROPE: Mapping[str, str] = {
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
GGUF_HARMLESS = ("context_length", "pooling_type", "tensor_data_layout", "vocab_size")
GGUF_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "rope.scaling.finetuned": (True,),
}
"""Keys of GGUF with the values at which llama.cpp computes what it computes without them: 1 is
softmax of `LLAMA_EXPERT_GATING_FUNC_TYPE`, and `finetuned` switches Granite's RoPE off."""
GGUF_UNUSED = "ssm."
"""Of recurrent layers, which Granite 4's dense models have none of, though the keys."""
GGUF_THETA = 10_000.0
"""RoPE's base where a GGUF file has none, of all architectures (`llama-model.cpp`)."""
