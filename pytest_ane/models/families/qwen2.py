"""Qwen2 and Qwen2.5: queries, keys and values have biases; later layers may have a window."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    layers_of,
    plain,
)

_FROM = 28
"""The first layer with a window, where the configuration does not tell (`Qwen2Config`)."""


def window_layers(s: Settings) -> int:
    """`max_window_layers`, which may be 0."""
    key = "max_window_layers"
    return 0 if s.get(key) == 0 else s.count(key, _FROM)


def windows(s: Settings, layers: int) -> list[int | None]:
    """Each layer's window; none unless `use_sliding_window`."""
    first = window_layers(s)
    kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return s.windows(kinds, s.switched_window(default=4096))


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    layers = layers_of(windows(s, len(config.layers)))
    return replace(config, layers=layers, biases=("q", "k", "v"))


FAMILY = DecoderFamily("qwen2", _configure)
