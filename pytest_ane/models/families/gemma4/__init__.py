"""Gemma 4 with experts (26B-A4B): sliding and global attention, experts in eight packs a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_ane.models.families import Cut, Port, Ports, Reference, Routing, Undecided
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import is_head
from pytest_ane.models.families._decoders import GEMMA_NAMES
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.decoder import DecoderConfig, DecoderFamily, DecoderModel
from pytest_ane.models.families.gemma4._config import (
    GGUF_KEYS,
    PUBLISHED,
    configure,
    layer_shards,
    own_experts,
    pack_of,
    part,
    starts_whole,
    wiring,
)
from pytest_ane.models.sources import Source, Spread

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.gemma4._forms import Weights
    from pytest_ane.models.reference.gemma4 import Gemma4Reference


class Gemma4Model(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    exact: Gemma4Reference
    dtype: npt.DTypeLike = np.float16
    """Of packs and heads, which are large, as they are converted."""

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the layers that the cut leaves out."""
        listed = {part(shard) for shard in self.shards if not is_head(shard)}
        every = (s for i in range(len(self.config.layers)) for s in layer_shards(i))
        return [shard for shard in every if part(shard) not in listed]

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.config, shard)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        if is_head(shard):
            return super().reference(shard)
        if (of := pack_of(shard)) is None:
            return self.exact.attention(self.index(shard))
        run = self.exact.last_pack if of.combines else self.exact.pack
        return run(of.layer, own_experts(self.config, of.pack))

    def residual(self, shard: str) -> Reference | None:
        """What enters attention; what enters the last pack, times the layer's scalar."""
        if (of := pack_of(shard)) is None:
            return None if is_head(shard) else list
        return self.exact.path(of.layer) if of.combines else None

    def routed(self, shard: str) -> Routing | None:
        """Which of a pack's own experts are among the chosen."""
        of = pack_of(shard)
        return of and self.exact.routed(of.layer, own_experts(self.config, of.pack))

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a pack's own experts are among the chosen."""
        of = pack_of(shard)
        return of and self.exact.undecided(of.layer, own_experts(self.config, of.pack))

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if pack_of(shard) is None:
            return super().ports(shard)
        x = Port("x", (1, self.layout(shard).width, "T", 1))
        return Ports((x,), (Port("y", (1, self.config.width, "T", 1)),))

    def index(self, shard: str) -> int:
        """Number of the layer that a shard is of."""
        return part(shard).layer

    def _module(self, shard: str) -> nn.Module:
        """The shard's ANE form, attention in float32."""
        from pytest_ane.models.families.decoder._ane import StatefulAttention
        from pytest_ane.models.families.gemma4._forms import AneCombiner, AnePack

        if is_head(shard):
            return super()._module(shard)
        c, index, of = self.config, self.index(shard), pack_of(shard)
        if of is None:
            return StatefulAttention(c, index, self.weights.attention(index))
        weights = self._weights(self.dtype)
        pack = AnePack(c, weights.router(index), weights.banks(*of), of.pack)
        return AneCombiner(c, pack, weights.combiner(index)) if of.combines else pack

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.models.families.gemma4._forms import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    """A shard's layout; the last pack takes the sum of the others below the hidden states."""
    if (of := pack_of(shard)) is None:
        return config.head_layout if is_head(shard) else config.layout(part(shard).layer)
    return AneLayout(config.family, 2 * config.width if of.combines else config.width)


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
        """As `Family.open_model`; attention always keeps states."""
        cut = replace(cut, stateful=True)
        ids = [wire.shard for wire in wiring(cut.shards)]
        config, names = self.read(source, cut, blocks.slices(ids))
        layers = [shard for shard in ids if not is_head(shard)]
        blocks.check_depth(source.label, layers, len(config.layers), lambda s: part(s).layer)
        return Gemma4Model(source, config, names, cut, self.exact(source))

    def opened(self, source: Source) -> Gemma4Reference:
        """Transformers' model, whose layers are run in part."""
        from pytest_ane.models.reference.gemma4 import Gemma4Reference

        return Gemma4Reference(source, self.usual(source))

    def layout(self, description: dict[str, Any], shard: str) -> AneLayout:
        """A shard's layout from `Gemma4Model.description`, without the weights."""
        return layout(DecoderConfig.from_description(description), shard)

    wiring = staticmethod(wiring)
    starts_whole = staticmethod(starts_whole)

    def spread(self, name: str, shape: tuple[int, ...]) -> Spread:
        """Distributions under which synthetic activations keep realistic magnitudes.

        Matrices keep the variance of what enters; a block adds about a tenth of the stream; scores
        have a variance near 1. What does nothing at 1 is not 1: a layer's scalar is about 0.7, an
        eighth of the experts' scales is 0, some are negative. Logits reach the soft cap of 30.
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
        return Spread.with_outliers(width**-0.5, outliers=0.03)


FAMILY = Gemma4Family(
    "gemma4",
    configure,
    types=("gemma4_text", "gemma4"),
    architectures=("gemma4",),
    names=GEMMA_NAMES,
    gguf_keys=GGUF_KEYS,
    tied=True,
    root="model.language_model.",
    own=_OWN,
    synthetic=PUBLISHED,
    revision=3,
)
