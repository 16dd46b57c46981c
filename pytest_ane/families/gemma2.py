"""Gemma 2: norms on both sides, soft caps, every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.families.decoder import DecoderConfig, DecoderFamily, Settings, layers_of, plain

NAMES = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}


def sandwiched(s: Settings, positions: int, theta: float | None) -> DecoderConfig:
    """What Gemma 2 and 3 share."""
    config = plain(s, positions, theta=theta, head=256, activation="gelu_pytorch_tanh")
    return replace(
        config,
        biases=("q", "k", "v", "o") if s.flag("attention_bias") else (),
        post_norms=True,
        scale=s.real("query_pre_attn_scalar", 256) ** -0.5,
        embedding_scale=config.width**0.5,
    )


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = sandwiched(s, positions, 10_000.0)
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(len(config.layers))]
    return replace(
        config,
        layers=layers_of(s.windows(kinds, s.window(default=4096))),
        score_cap=s.cap("attn_logit_softcapping", 50.0),
        logit_cap=s.cap("final_logit_softcapping", 30.0),
    )


FAMILY = DecoderFamily("gemma2", _configure, names=NAMES, norm_offset=1.0, tied=True)
