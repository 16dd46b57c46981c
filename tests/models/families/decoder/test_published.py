"""`config.json` as models are published with it, in keys of transformers 4, against transformers.

Kinds, scales and what is left out are as published; sizes, windows and lengths are smaller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.models.families import Cut
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.families.registry import family_of, get_family
from pytest_ane.models.sources._safetensors import SafetensorsSource
from tests.models.families.decoder.oracle import Converted, difference, expected, prompt, referred

Config = Mapping[str, Any]


def without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


_SIZES: Config = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "vocab_size": 61, "rms_norm_eps": 1e-5, "pad_token_id": 0,
}  # fmt: skip
_LLAMA: Config = {
    **_SIZES, "model_type": "llama", "attention_bias": False, "head_dim": 8, "hidden_act": "silu",
    "max_position_embeddings": 131072, "mlp_bias": False, "pretraining_tp": 1,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64, "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN2: Config = {
    **_SIZES, "model_type": "qwen2", "hidden_act": "silu", "max_position_embeddings": 32768,
    "max_window_layers": 2, "rope_theta": 1000000.0, "sliding_window": 5,
    "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
}  # fmt: skip
_WINDOW: Config = {"use_sliding_window": True, "max_window_layers": 0}
_QWEN3: Config = {
    **_SIZES, "model_type": "qwen3", "attention_bias": False, "head_dim": 16, "hidden_act": "silu",
    "max_position_embeddings": 40960, "max_window_layers": 28, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "use_sliding_window": False,
}  # fmt: skip
_QWEN3_MOE: Config = {
    **_QWEN3, "model_type": "qwen3_moe", "decoder_sparse_step": 1, "mlp_only_layers": [],
    "moe_intermediate_size": 12, "norm_topk_prob": True, "num_experts": 8,
    "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
_MISTRAL: Config = {
    **_SIZES, "model_type": "mistral", "hidden_act": "silu", "max_position_embeddings": 32768,
    "rope_theta": 10000.0, "sliding_window": 5, "tie_word_embeddings": False,
}  # fmt: skip
_MIXTRAL: Config = {
    **_MISTRAL, "model_type": "mixtral", "num_experts_per_tok": 2, "num_local_experts": 4,
    "output_router_logits": False, "rope_theta": 1000000.0, "sliding_window": None,
}  # fmt: skip
_GEMMA2: Config = {
    **_SIZES, "model_type": "gemma2", "attention_bias": False, "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 16,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "rope_theta": 10000.0,
    "sliding_window": 5,
}  # fmt: skip
_GEMMA3: Config = {
    **_SIZES, "model_type": "gemma3_text", "attention_bias": False, "attn_logit_softcapping": None,
    "cache_implementation": "hybrid", "final_logit_softcapping": None, "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768,
    "num_hidden_layers": 7, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 5, "sliding_window_pattern": 6,
}  # fmt: skip
_GEMMA3_4B: Config = {
    "model_type": "gemma3", "boi_token_index": 1, "eoi_token_index": 2, "image_token_index": 3,
    "mm_tokens_per_image": 4,
    "text_config": {
        "hidden_size": 32, "intermediate_size": 48, "model_type": "gemma3_text",
        "num_hidden_layers": 2, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 5,
    },
    "vision_config": {
        "hidden_size": 16, "image_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
        "model_type": "siglip_vision_model", "num_hidden_layers": 1, "patch_size": 4,
        "vision_use_head": False,
    },
}  # fmt: skip
"""It says neither heads nor vocabulary: those are transformers' defaults."""
_PHI3: Config = {
    **_SIZES, "model_type": "phi3", "attention_bias": False, "embd_pdrop": 0.0,
    "hidden_act": "silu", "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096, "resid_pdrop": 0.0, "rope_scaling": None,
    "rope_theta": 10000.0, "sliding_window": 7, "tie_word_embeddings": False,
}  # fmt: skip
_LONG: Config = {
    "max_position_embeddings": 131072, "sliding_window": 262144,
    "rope_scaling": {
        "long_factor": [1.1, 2.0, 3.0, 4.0], "short_factor": [1.0, 1.2, 1.3, 1.4],
        "type": "longrope",
    },
}  # fmt: skip
_PHI4_MINI: Config = {
    **_LONG, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    "partial_rotary_factor": 0.75, "tie_word_embeddings": True,
    "rope_scaling": {
        "long_factor": [1.0, 1.1, 1.2], "short_factor": [1.0, 1.5, 1.7], "type": "longrope",
    },
}  # fmt: skip
_SMOLLM3: Config = {
    **_SIZES, "model_type": "smollm3", "attention_bias": False, "hidden_act": "silu",
    "layer_types": ["full_attention"] * 5, "max_position_embeddings": 65536,
    "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0, 1], "num_hidden_layers": 5, "pretraining_tp": 2,
    "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
    "use_sliding_window": False,
}  # fmt: skip
_GRANITE: Config = {
    **_SIZES, "model_type": "granite", "attention_bias": False, "attention_multiplier": 0.0625,
    "embedding_multiplier": 12.0, "hidden_act": "silu", "logits_scaling": 8.0,
    "max_position_embeddings": 131072, "mlp_bias": False, "residual_multiplier": 0.22,
    "rope_scaling": None, "rope_theta": 5000000.0, "tie_word_embeddings": True,
}  # fmt: skip


_GRANITE4: Config = {
    **without(_GRANITE, "mlp_bias"), "model_type": "granitemoehybrid", "intermediate_size": 40,
    "layer_types": ["attention"] * 3, "mamba_d_head": 8, "mamba_expand": 2, "mamba_n_heads": 8,
    "normalization_function": "rmsnorm", "num_experts_per_tok": 0, "num_local_experts": 0,
    "position_embedding_type": "rope", "rope_theta": 10000000, "shared_intermediate_size": 48,
}  # fmt: skip


PUBLISHED: Mapping[str, tuple[str, Config]] = {
    "Llama-3.2": ("llama", _LLAMA),
    "Llama-3.2, head of its own though tied": ("llama", {**_LLAMA, "own_head": True}),
    "Qwen2.5": ("qwen2", _QWEN2),
    "Qwen2.5, YaRN": ("qwen2", {**_QWEN2, "rope_scaling": {
        "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn",
    }}),
    "Qwen2.5, all layers with a window": ("qwen2", {**_QWEN2, **_WINDOW}),
    "Qwen3": ("qwen3", _QWEN3),
    "Qwen3, all layers with a window": ("qwen3", {**_QWEN3, **_WINDOW, "sliding_window": 5}),
    "Qwen3-30B-A3B": ("qwen3_moe", _QWEN3_MOE),
    "Qwen3-30B-A3B, window": ("qwen3_moe", {
        **_QWEN3_MOE, "use_sliding_window": True, "sliding_window": 5,
    }),
    "Qwen3-MoE without head_dim": ("qwen3_moe", without(_QWEN3_MOE, "head_dim")),
    "Mistral-7B-v0.1": ("mistral", _MISTRAL),
    "Mistral-7B-v0.3": ("mistral", {**_MISTRAL, "sliding_window": None, "rope_theta": 1e6}),
    "Mistral-Nemo": ("mistral", {**_MISTRAL, "sliding_window": None, "head_dim": 16}),
    "Ministral-8B": ("mistral", {**_MISTRAL, "head_dim": 16, "rope_theta": 1e8}),
    "Mixtral-8x7B": ("mixtral", _MIXTRAL),
    "Mixtral without rms_norm_eps": ("mixtral", without(_MIXTRAL, "rms_norm_eps")),
    "Gemma-2-2B": ("gemma2", _GEMMA2),
    "Gemma-2, head of its own though tied": ("gemma2", {**_GEMMA2, "own_head": True}),
    "Gemma-3-1B": ("gemma3", _GEMMA3),
    "Gemma-3-4B": ("gemma3", _GEMMA3_4B),
    "Phi-3-mini-4k": ("phi3", _PHI3),
    "Phi-3-mini-128k": ("phi3", {**_PHI3, **_LONG}),
    "Phi-3 without the trained length": (
        "phi3",
        without({**_PHI3, **_LONG}, "original_max_position_embeddings", "rms_norm_eps"),
    ),
    "Phi-4-mini": ("phi3", {**_PHI3, **_PHI4_MINI}),
    "SmolLM3": ("smollm3", _SMOLLM3),
    "Granite-3": ("granite", _GRANITE),
    "Granite-4.0-micro": ("granite", _GRANITE4),
    "Granite-4.0 that does not turn": ("granite", {**_GRANITE4, "position_embedding_type": "nope"}),
}  # fmt: skip
TOKENS = 40


def saved(folder: Path, config: Config) -> Any:
    """A checkpoint with random weights and this `config.json`; transformers' model of both."""
    import transformers

    kind = "ImageTextToText" if "text_config" in config else "CausalLM"
    auto = getattr(transformers, f"AutoModelFor{kind}")
    eager = {"experts_implementation": "eager"}
    text = json.dumps(without(config, "own_head"))
    (folder / "config.json").write_text(text)
    torch.manual_seed(0)
    model = auto.from_config(transformers.AutoConfig.from_pretrained(folder), **eager)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    if "own_head" in config:
        rows = torch.randn_like(model.lm_head.weight)
        model.lm_head.weight = torch.nn.Parameter(rows)
        model.config.tie_word_embeddings = False
    model.save_pretrained(folder)
    (folder / "config.json").write_text(text)
    return auto.from_pretrained(folder, dtype=torch.float32, **eager).eval()


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_logits(name: str, tmp_path: Path) -> None:
    family, config = PUBLISHED[name]
    right = expected(saved(tmp_path, config), ids := prompt(TOKENS))
    source = SafetensorsSource(tmp_path)
    assert family_of(source) == family
    layers = config.get("text_config", config)["num_hidden_layers"]
    shards = (*(f"L{i:02d}" for i in range(layers)), "head.0")
    model = get_family(family).open_model(source, Cut(shards, max_tokens=TOKENS))
    assert isinstance(model, DecoderModel)
    for actual in (referred(model, ids), Converted(model)(ids)):
        assert difference(actual, right) <= 1e-4
        np.testing.assert_array_equal(actual.argmax(axis=1), right.argmax(axis=1))
