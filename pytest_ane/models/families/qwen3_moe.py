"""Qwen3 with experts (30B-A3B, 235B-A22B): sparse layers in place of some or all dense ones."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Mixture,
    Settings,
    layers_of,
)
from pytest_ane.models.families.qwen3 import configure

NAMES = {
    "router": "mlp.gate",
    "expert_gate": "mlp.experts.{}.gate_proj",
    "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
}


def mixed(s: Settings, config: DecoderConfig, mixture: Mixture) -> DecoderConfig:
    """Sparse layers where Qwen's keys say so; the mixture's sizes where they are silent."""
    step, dense = s.count("decoder_sparse_step", 1), s.get("mlp_only_layers", [])
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(config.layers))]
    # One of two names, by the version of transformers that saved it.
    experts = "num_experts" if s.get("num_experts") else "num_local_experts"
    return replace(
        config,
        layers=tuple(replace(w, sparse=s) for w, s in zip(config.layers, sparse, strict=True)),
        mixture=replace(
            mixture,
            experts=s.count(experts, s.published(mixture.experts)),
            top=s.count("num_experts_per_tok", s.published(mixture.top)),
            ffn=s.count("moe_intermediate_size", s.published(mixture.ffn)),
            # llama.cpp has it by the architecture, whatever the model was trained with.
            normalized=mixture.normalized if s.is_gguf else s.flag("norm_topk_prob"),
        ),
    )


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = configure(s, positions, head=None)
    # All layers have the window, where Qwen3's have one from `max_window_layers` on.
    layers = layers_of([s.switched_window(default=4096)] * len(config.layers))
    return mixed(s, replace(config, layers=layers), Mixture(experts=128, top=8, ffn=768))


FAMILY = DecoderFamily(
    "qwen3_moe",
    _configure,
    architectures=("qwen3moe",),
    names=NAMES,
)
