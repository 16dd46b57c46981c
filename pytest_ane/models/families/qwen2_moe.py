"""Qwen1.5 and Qwen2 with experts (A2.7B, 57B-A14B): of one expert each position has its share."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Mixture,
    Settings,
    layers_of,
    plain,
)
from pytest_ane.models.families.qwen2 import window_layers
from pytest_ane.models.families.qwen3_moe import NAMES, mixed


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    window, first = s.switched_window(default=4096), window_layers(s)
    kinds = [
        "sliding_attention" if i % 2 == 0 and i < first else "full_attention"
        for i in range(len(config.layers))
    ]
    config = replace(
        config,
        layers=layers_of(s.windows(kinds, window)),
        biases=("q", "k", "v") if s.flag("qkv_bias", True) else (),
    )
    shared = s.count("shared_expert_intermediate_size", config.ffn if s.is_gguf else 5632)
    sizes = Mixture(experts=60, top=4, ffn=1408, normalized=False, shared=shared)
    return mixed(s, config, sizes)


FAMILY = DecoderFamily(
    "qwen2_moe",
    _configure,
    architectures=("qwen2moe",),
    names=NAMES
    | {f"shared_{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
    | {"shared_router": "mlp.shared_expert_gate"},
)
