"""SmolLM3: a Llama of which every fourth layer does not turn."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    biases,
    layers_of,
    plain,
)

_INTERVAL = 4


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions, theta=2e6)
    count = len(config.layers)
    interval = s.count("no_rope_layer_interval", _INTERVAL)
    told = s.layers("no_rope_layers", {"1": 0, "0": None})
    turned = told or tuple(0 if (i + 1) % interval else None for i in range(count))
    kinds = ["full_attention" if r == 0 else "sliding_attention" for r in turned]
    windows = s.windows(kinds, s.switched_window(default=None))
    return replace(config, layers=layers_of(windows, turned), biases=biases(s))


FAMILY = DecoderFamily("smollm3", _configure, paired=True, tied=True)
