"""ZAYA1 models of a few channels with random weights, held in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_ane.models.families import Cut
from pytest_ane.models.families.zaya import ZayaModel, open_model
from tests.models.families.llama.tiny import MemorySource

CONTEXT = 12


def tiny_source(
    *,
    layers: int = 2,
    width: int = 12,
    kv_heads: int = 2,
    group: int = 2,
    head: int = 4,
    experts: int = 3,
    ffn: int = 8,
    router: int = 6,
    vocabulary: int = 11,
    overflowing: bool = False,
    seed: int = 0,
) -> MemorySource:
    """Weights of a size that keeps activations near 1, as fp16 holds them.

    `group` query heads share a key; `overflowing` ones have convolutions that fp16 does not bear.
    """
    rng = np.random.default_rng(seed)
    heads, kv = kv_heads * group, kv_heads * head
    channels = heads * head + kv

    def normal(*shape: int, mean: float = 0.0, std: float | None = None) -> np.ndarray:
        wide = float(np.prod(shape[1:])) ** -0.5 if std is None else std
        values = mean + wide * rng.standard_normal(shape)
        return values.astype(np.float16).astype(np.float32)

    def residual() -> dict[str, np.ndarray]:
        names = ("hidden_states_scale", "residual_scale", "hidden_states_bias", "residual_bias")
        return {f"res_scale.{n}": normal(width, mean=n.endswith("scale"), std=0.2) for n in names}

    def attention() -> dict[str, np.ndarray]:
        return {
            "self_attn.qkv.linear_q.weight": normal(heads * head, width),
            "self_attn.qkv.linear_k.weight": normal(kv, width),
            "self_attn.qkv.val_proj1.weight": normal(kv // 2, width),
            "self_attn.qkv.val_proj2.weight": normal(kv // 2, width),
            "self_attn.qkv.conv_qk.0.weight": normal(channels, 1, 2),
            "self_attn.qkv.conv_qk.0.bias": normal(channels, mean=6.0 * overflowing, std=0.2),
            "self_attn.qkv.conv_qk.1.weight": normal(channels, head, 2),
            "self_attn.qkv.conv_qk.1.bias": normal(channels, std=0.2),
            "self_attn.qkv.temp": normal(kv_heads, mean=1.0, std=0.3),
            "self_attn.o_proj.weight": normal(width, heads * head),
        }

    def mixture() -> dict[str, np.ndarray]:
        own = "zaya_block.router."
        tensors = {
            f"{own}down_proj.weight": normal(router, width),
            f"{own}down_proj.bias": normal(router, std=0.2),
            f"{own}rmsnorm_eda.weight": normal(router, mean=1.0, std=0.2),
            f"{own}router_mlp.0.weight": normal(router, router),
            f"{own}router_mlp.0.bias": normal(router, std=0.2),
            f"{own}router_mlp.2.weight": normal(router, router),
            f"{own}router_mlp.2.bias": normal(router, std=0.2),
            f"{own}router_mlp.4.weight": normal(experts + 1, router),
            f"{own}balancing_biases": normal(experts + 1, std=0.2),
            f"{own}router_states_scale": normal(router, mean=1.0, std=0.2),
        }
        for e in range(experts):
            name = f"zaya_block.experts.local_experts.{e}.linear_fc"
            tensors |= {
                f"{name}1.weight": normal(2 * ffn, width),
                f"{name}2.weight": normal(width, ffn),
            }
        return tensors

    tensors = {
        "model.embed_tokens.weight": normal(vocabulary, width),
        "model.final_norm.weight": normal(width, mean=1.0, std=0.2),
    }
    tensors |= {f"model.{name}": value for name, value in residual().items()}
    for i in range(layers):
        layer = (mixture() if i % 2 else attention()) | residual()
        layer["input_norm.weight"] = normal(width, mean=1.0, std=0.2)
        tensors |= {f"model.layers.{i}.{name}": value for name, value in layer.items()}
    values: dict[str, Any] = {
        "model_type": "zaya",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_query_groups": kv_heads,
        "head_dim": head,
        "partial_rotary_factor": 0.5,
        "rope_theta": 100.0,
        "num_experts": experts,
        "ffn_hidden_size": 2 * ffn,
        "zaya_mlp_expansion": router,
        "norm_epsilon": 1e-5,
        "vocab_size": vocabulary,
    }
    return MemorySource(tensors, values, label="tiny")


def tiny_model(
    shards: Sequence[str] = ("L00", "L01"), variant: str = "notes", **dimensions: Any
) -> ZayaModel:
    """A model of these dimensions cut into these shards, with states of `CONTEXT` positions."""
    cut = Cut(tuple(shards), max_tokens=4, context=CONTEXT, variant=variant)
    return open_model(tiny_source(**dimensions), cut)
