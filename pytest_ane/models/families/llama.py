"""Llama: RMSNorm, RoPE, grouped queries, SwiGLU. Llama 1 to 3.3, SmolLM 1 and 2, TinyLlama."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    biases,
    plain,
)


def _configure(s: Settings, positions: int) -> DecoderConfig:
    return replace(plain(s, positions), biases=biases(s))


FAMILY = DecoderFamily("llama", _configure, paired=True, revision=3)
