"""Gemma 4 as a family: its shards, and the distributions of its synthetic weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import blocks
from pytest_ane.models.families.base import Cut
from pytest_ane.models.families.blocks import is_head
from pytest_ane.models.families.decoder import DecoderConfig, DecoderFamily
from pytest_ane.models.families.gemma2 import NAMES
from pytest_ane.models.families.gemma4.config import GGUF_KEYS, PUBLISHED, configure
from pytest_ane.models.families.gemma4.model import Gemma4Model, layout
from pytest_ane.models.families.gemma4.shards import part, starts_whole, wiring
from pytest_ane.models.families.layout import AneLayout
from pytest_ane.models.sources import Source, Spread

_OWN = {
    "layer_scalar": "layer_output_scale.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
"""Tensors of a layer besides the decoder core's, and their names in GGUF (`Gemma4Model`)."""


class Gemma4Family(DecoderFamily):
    """Layers of nine shards in place of blocks; attention always keeps states."""

    def open_model(self, source: Source, cut: Cut) -> Gemma4Model:
        """See a checkpoint or a synthetic source as a model cut into these shards.

        Raises:
            SourceError: another variant, tensors this family does not compute with, or a layer the
                model does not have.
            ManifestError: a shard id that is none of this family's, or a head slice left out.
        """
        cut = replace(cut, stateful=True)
        ids = [wire.shard for wire in wiring(cut.shards)]
        config, names = self.read(source, cut, blocks.slices(ids))
        for shard in ids:
            if not is_head(shard) and part(shard).layer >= len(config.layers):
                raise SourceError(
                    f"{source.label}: has {len(config.layers)} layers, so no shard {shard}."
                )
        return Gemma4Model(source, config, names, cut)

    def layout(self, description: dict[str, Any], shard: str) -> AneLayout:
        """A shard's layout from `Gemma4Model.description`, without the weights."""
        return layout(DecoderConfig.of(description), shard)

    wiring = staticmethod(wiring)
    starts_whole = staticmethod(starts_whole)

    def spread(self, name: str, shape: tuple[int, ...]) -> Spread:
        """Distributions under which synthetic activations keep realistic magnitudes.

        Matrices keep the variance of what enters, and 3 % of their values lie at 5 sigma. The norms
        before each residual sum have mean 0.1, so that a block adds about a tenth of the stream.
        Queries and keys have norms d^(-1/4), so that scores have a variance near 1. Router logits
        have a standard deviation near 1.5. What does nothing at 1 is not 1: a layer's scalar is
        about 0.7, an eighth of the experts' scales is 0, and some are negative. Logits reach the
        soft cap of 30.
        """
        width = shape[-1] if shape else 1
        if name.endswith("layer_scalar"):
            return Spread(std=0.05, mean=0.7)
        if name.endswith("per_expert_scale"):
            return Spread(std=0.6, mean=0.7, zeros=0.125)
        if name == f"{self.root}norm.weight":
            return Spread(std=1.0, mean=10.0)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return Spread(std=0.1 * width**-0.25, mean=width**-0.25)
        if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            return Spread(std=0.01, mean=0.1)
        if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "scale")):
            return Spread(std=0.1, mean=1.0)
        if name.endswith("router.proj.weight"):
            return Spread(std=1.5)
        if name.endswith("embed_tokens.weight"):
            return Spread(std=width**-0.5)
        return Spread.of(width**-0.5, outliers=0.03)


FAMILY = Gemma4Family(
    "gemma4",
    configure,
    types=("gemma4_text", "gemma4"),
    architectures=("gemma4",),
    names=NAMES,
    gguf_keys=GGUF_KEYS,
    tied=True,
    root="model.language_model.",
    own=_OWN,
    synthetic=PUBLISHED,
    revision=3,
)
