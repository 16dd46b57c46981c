"""Granite 3, and 4 (dense) as GGUF: a Llama with multipliers."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.families.decoder import DecoderConfig, DecoderFamily, Settings, biases, plain


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    return replace(
        config,
        biases=biases(s),
        scale=s.real("attention_multiplier", config.head**-0.5 if s.is_gguf else 1.0),
        embedding_scale=s.real("embedding_multiplier", 1.0),
        residual_scale=s.real("residual_multiplier", 1.0),
        logit_scale=1 / s.real("logits_scaling", 1.0),
    )


FAMILY = DecoderFamily("granite", _configure, paired=True)
