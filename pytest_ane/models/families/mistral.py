"""Mistral 7B and what is like it: a Llama all of whose layers may have a window."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    layers_of,
    plain,
)

_WINDOW = 4096
"""Of a configuration that does not mention one (`MistralConfig`)."""


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    window = s.window(default=s.published(_WINDOW))
    return replace(config, layers=layers_of([window] * len(config.layers)))


# GGUF files of Mistral say that they are of llama's architecture, and have no window.
FAMILY = DecoderFamily("mistral", _configure, architectures=("llama",), paired=True)
