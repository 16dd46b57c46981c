"""Gemma 2: norms on both sides, soft caps, every other layer with a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    biases,
    layers_of,
    plain,
)

_LARGEST = (46, 62)
"""Layers of Gemma 2 and 3 27B."""
_KINDS = ("full_attention", "sliding_attention")
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
        biases=biases(s, ffn=False),
        post_norms=True,
        scale=_scalar(s, config) ** -0.5,
        embedding_scale=config.width**0.5,
    )


def _scalar(s: Settings, config: DecoderConfig) -> float:
    """The square of what scores are divided by.

    GGUF files do not tell: llama.cpp takes the head's channels, and of the models of 27B, which it
    knows by their layers, an even share of the width (`llama_model_gemma2::load_arch_hparams`).
    """
    if s.is_gguf:
        return config.width / config.heads if len(config.layers) in _LARGEST else config.head
    return s.real("query_pre_attn_scalar", 256)


def kinds(s: Settings, layers: int, period: int) -> Sequence[str]:
    """What each layer is, where `layer_types` does not tell: the last of a period sees all."""
    if isinstance(s.get("sliding_window_pattern"), list):
        known = {str(value): _KINDS[bool(value)] for value in (True, False, 1, 0)}
        return s.layers("sliding_window_pattern", known) or ()
    period = s.count("sliding_window_pattern", period)
    return [_KINDS[(i + 1) % period > 0] for i in range(layers)]


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = sandwiched(s, positions, 10_000.0)
    if not s.is_gguf:
        s.only("sliding_window_pattern", 2)
    by_kind = kinds(s, len(config.layers), 2)
    return replace(
        config,
        layers=layers_of(s.windows(by_kind, s.window(default=4096))),
        score_cap=s.cap("attn_logit_softcapping", 50.0),
        logit_cap=s.cap("final_logit_softcapping", 30.0),
    )


FAMILY = DecoderFamily("gemma2", _configure, names=NAMES, norm_offset=1.0, tied=True, revision=2)
