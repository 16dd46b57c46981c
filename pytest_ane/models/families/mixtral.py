"""Mixtral: a Mistral of whose experts each position chooses two."""

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


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions, theta=1e6)
    layers = layers_of([s.window(default=None)] * len(config.layers))
    return replace(
        config,
        layers=tuple(replace(layer, sparse=True) for layer in layers),
        mixture=Mixture(
            experts=s.count("num_local_experts", s.published(8)),
            top=s.count("num_experts_per_tok", s.published(2)),
            ffn=config.ffn,
        ),
    )


# GGUF files of Mixtral say that they are of llama's architecture.
FAMILY = DecoderFamily(
    "mixtral",
    _configure,
    architectures=("llama",),
    paired=True,
    defaults={"rms_norm_eps": 1e-5},
    names={
        "router": "block_sparse_moe.gate",
        "expert_gate": "block_sparse_moe.experts.{}.w1",
        "expert_up": "block_sparse_moe.experts.{}.w3",
        "expert_down": "block_sparse_moe.experts.{}.w2",
    },
)
