"""Qwen3 with experts (30B-A3B, 235B-A22B): sparse layers in place of some or all dense ones."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.families.decoder import DecoderConfig, DecoderFamily, Mixture, Settings
from pytest_ane.families.qwen3 import configure


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = configure(s, positions)
    step, dense = s.count("decoder_sparse_step", 1), s.get("mlp_only_layers", [])
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(config.layers))]
    # One of two names, by the version of transformers that saved it.
    experts = "num_experts" if s.get("num_experts") else "num_local_experts"
    return replace(
        config,
        layers=tuple(replace(w, sparse=s) for w, s in zip(config.layers, sparse, strict=True)),
        mixture=Mixture(
            experts=s.count(experts, 128),
            top=s.count("num_experts_per_tok", 8),
            ffn=s.count("moe_intermediate_size", 768),
            normalized=s.flag("norm_topk_prob"),
        ),
    )


FAMILY = DecoderFamily(
    "qwen3_moe",
    _configure,
    architectures=("",),
    names={
        "router": "mlp.gate",
        "expert_gate": "mlp.experts.{}.gate_proj",
        "expert_up": "mlp.experts.{}.up_proj",
        "expert_down": "mlp.experts.{}.down_proj",
    },
)
