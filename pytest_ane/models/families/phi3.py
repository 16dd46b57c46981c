"""Phi-3, 3.5 and 4: fused projections, part of a head turns, LongRoPE."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    layers_of,
    plain,
)

_QKV, _HALVES = ("q", "k", "v"), ("gate", "up")


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions, partial=1.0)
    window = s.window(default=None)
    return replace(config, layers=layers_of([window] * len(config.layers)))


FAMILY = DecoderFamily(
    "phi3",
    _configure,
    names=dict.fromkeys(_QKV, "self_attn.qkv_proj") | dict.fromkeys(_HALVES, "mlp.gate_up_proj"),
    gguf_names=dict.fromkeys(_QKV, "attn_qkv") | dict.fromkeys(_HALVES, "ffn_up"),
    fused=(_QKV, _HALVES),
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
)
