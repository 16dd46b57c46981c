"""Qwen1.5 and Qwen2 with experts (A2.7B, 57B-A14B): of one expert each position has its share."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Mixture,
    Settings,
    layers_of,
    plain,
)
from pytest_ane.families.qwen2 import window_layers
from pytest_ane.families.qwen3_moe import NAMES, mixed


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    window, first = s.switched_window(default=4096), window_layers(s)
    kinds = [
        "sliding_attention" if window and i % 2 == 0 and i < first else "full_attention"
        for i in range(len(config.layers))
    ]
    config = replace(
        config,
        layers=layers_of(s.windows(kinds, window)),
        biases=("q", "k", "v") if s.flag("qkv_bias", True) else (),
    )
    shared = s.count("shared_expert_intermediate_size", 5632)
    return mixed(s, config, Mixture(experts=60, top=4, ffn=1408, shared=shared))


# llama.cpp stores the row that weighs the shared expert in another shape, and has not been tried.
FAMILY = DecoderFamily(
    "qwen2_moe",
    _configure,
    architectures=("",),
    names=NAMES
    | {f"shared_{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
    | {"shared_router": "mlp.shared_expert_gate"},
)
