"""Gemma 3 (text): five layers with a window and angles of their own to one that sees all."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import DecoderConfig, DecoderFamily, Settings, layers_of
from pytest_ane.models.families.gemma2 import NAMES, kinds, sandwiched

_PATTERN = 6
_STREAM_SCALE = 2.0**-5
"""Hidden states of the 270M model reach 104,000, and fp16 ends at 65,504."""


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = sandwiched(s, positions, None)
    by_kind = kinds(s, len(config.layers), _PATTERN)
    # llama.cpp lets all layers of a file without a window see everything.
    windows = s.windows(by_kind, s.window(default=s.published(4096)))
    far = s.rotary(config.head, positions, theta=1e6, layer_type="full_attention")
    near = s.rotary(
        config.head,
        positions,
        theta=1e4,
        layer_type="sliding_attention",
        theta_key="rope_local_base_freq",
        scaled=False,
    )
    return replace(
        config,
        head_norms=True,
        stream_scale=_STREAM_SCALE,
        layers=layers_of(windows, [0 if window is None else 1 for window in windows]),
        rotaries=(far, near),
        logit_cap=s.cap("final_logit_softcapping"),
    )


FAMILY = DecoderFamily(
    "gemma3",
    _configure,
    types=("gemma3_text", "gemma3"),
    architectures=("gemma3",),
    names=NAMES,
    norm_offset=1.0,
    tied=True,
    # Files of the models that also see images leave out what is as here.
    defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
    revision=2,
)
