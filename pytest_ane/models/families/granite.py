"""Granite 3 and 4 (dense): a Llama with multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    biases,
    plain,
)
from pytest_ane.models.families.decoder.names import Names
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.settings import architecture_of

_HYBRID = "granitemoehybrid"
"""What Granite 4's dense models are by `model_type`: hybrids without recurrence and experts."""
_HALVES = ("gate", "up")
_SHARED = dict.fromkeys(_HALVES, "shared_mlp.input_linear") | {"down": "shared_mlp.output_linear"}


def _is_hybrid(source: Source) -> bool:
    return bool(architecture_of(source.value)[1] == _HYBRID)


def _configure(s: Settings, positions: int) -> DecoderConfig:
    config, hybrid = plain(s, positions), _is_hybrid(s.source)
    config = replace(
        config,
        biases=biases(s, ffn=not hybrid),
        scale=s.real("attention_multiplier", config.head**-0.5 if s.is_gguf else 1.0),
        embedding_scale=s.real("embedding_multiplier", 1.0),
        residual_scale=s.real("residual_multiplier", 1.0),
        logit_scale=1 / s.real("logits_scaling", 1.0),
    )
    return _without_recurrence(s, config) if hybrid else config


def _without_recurrence(s: Settings, config: DecoderConfig) -> DecoderConfig:
    """Of a hybrid all of whose layers are attention, and have what experts would share."""
    s.needed("layer_types")
    s.layers("layer_types", {"attention": None, "full_attention": None})
    if (experts := s.needed("num_local_experts")) != 0:
        s.refuse("num_local_experts", experts)
    turned = 0 if s.get("position_embedding_type") == "rope" else None
    layers = tuple(replace(layer, rotary=turned) for layer in config.layers)
    return replace(config, ffn=s.count("shared_intermediate_size"), layers=layers)


@dataclass(frozen=True)
class GraniteFamily(DecoderFamily):
    """Two names of one feed-forward network."""

    def _names(self, source: Source, settings: Settings) -> Names:
        names = super()._names(source, settings)
        if not _is_hybrid(source):
            return names
        return replace(names, parts={**names.parts, **_SHARED}, fused=(_HALVES,))


FAMILY = GraniteFamily(
    "granite", _configure, types=("granite", _HYBRID), architectures=("granite",), paired=True
)
