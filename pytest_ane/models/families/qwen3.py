"""Qwen3 and its embedding models: heads' queries and keys are normed before they turn."""

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
from pytest_ane.models.families.qwen2 import windows


def configure(s: Settings, positions: int, head: int | None = 128) -> DecoderConfig:
    """Qwen3's configuration, experts apart; `head` is that of a file that does not tell."""
    config = plain(s, positions, head=head)
    return replace(
        config,
        layers=layers_of(windows(s, len(config.layers))),
        biases=biases(s, ffn=False),
        head_norms=True,
    )


FAMILY = DecoderFamily("qwen3", configure)
