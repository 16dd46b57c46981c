"""Gemma 3 (text): five layers with a window and angles of their own to one that sees all."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.families.decoder import DecoderConfig, DecoderFamily, Settings, layers_of
from pytest_ane.families.gemma2 import NAMES, sandwiched

_PATTERN = 6
_STREAM_SCALE = 2.0**-5
"""Hidden states of the 270M model reach 104,000, and fp16 ends at 65,504."""


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = sandwiched(s, positions, None)
    pattern = s.count("sliding_window_pattern", _PATTERN)
    kinds = [
        "sliding_attention" if (i + 1) % pattern else "full_attention"
        for i in range(len(config.layers))
    ]
    windows = s.windows(kinds, s.window(default=4096))
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
    revision=2,
)
