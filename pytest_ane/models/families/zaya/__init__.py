"""ZAYA1 (Zyphra): compressed convolutional attention and mixtures of experts, in alternation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Cut, Port, Ports, Reference, Routing, Undecided
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import block_index, is_head, starts_whole
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.models.families.decoder import DecoderModel
from pytest_ane.models.families.decoder._model import layout as decoder_layout
from pytest_ane.models.families.zaya._config import (
    VERSION,
    ZayaConfig,
    ZayaNames,
    is_attention,
    spread,
    wiring,
)
from pytest_ane.models.sources import Source

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.zaya._weights import ZayaWeights
    from pytest_ane.models.reference.zaya import ZayaReference


__all__ = ["VERSION", "ZayaModel", "layout", "open_model", "spread", "starts_whole", "wiring"]


class ZayaModel(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    config: ZayaConfig
    names: ZayaNames
    exact: ZayaReference
    dtype: npt.DTypeLike = np.float16
    """Of what is converted: half the memory, and fp16 ones convert fastest."""

    def independent(self, shard: str) -> bool:
        """Nobody else computes the notes' form, of which transformers has the head alone."""
        return self.config.is_published or is_head(shard)

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        """What transformers gives the first layer, or this family the notes' form."""
        return super().reference_embed(ids) if self.config.is_published else self.embed(ids)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        if is_head(shard):
            return super().reference(shard)
        if not self.config.is_published:
            return self._itself(shard)
        index = block_index(shard)
        half = self.exact.attention if is_attention(index) else self.exact.mixture
        return half(index // 2)

    def residual(self, shard: str) -> Reference | None:
        """What enters a layer, times its residual scale, plus its residual bias."""
        if is_head(shard):
            return None
        index = block_index(shard)
        if self.config.is_published:
            return self.exact.path(index // 2, attention=is_attention(index))
        w = self.weights.residual(index)
        scale, bias = w.residual_scale.numpy(), w.residual_bias.numpy()
        return lambda sequences: [x * scale + bias for x in sequences]

    def routed(self, shard: str) -> Routing | None:
        """Experts of a mixture that are chosen, or of the notes' form those that say much."""
        if not self._is_sparse(shard):
            return None
        index = block_index(shard)
        if self.config.is_published:
            return self.exact.routed(index // 2)
        from pytest_ane.models.families.zaya._ane import routes

        w = self.weights.mixture(index)
        return lambda sequences: [routes(x, w, self.config) for x in sequences]

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which expert is chosen; the notes' form weights all of them."""
        if not (self.config.is_published and self._is_sparse(shard)):
            return None
        return self.exact.undecided(block_index(shard) // 2)

    def _stateless(self) -> ZayaConfig:
        """As it is, for its attention has states throughout."""
        return self.config

    def filling(self, shard: str) -> None:
        """None: a sequence is run from its start."""

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if is_head(shard):
            return super().ports(shard)
        c, index = self.config, block_index(shard)
        if is_attention(index):
            states = tuple(Port(name, shape) for name, shape in c.state_shapes(index).items())
            return replace(super().ports(shard), states=states)
        x, y = c.width + c.enters(index), c.width + c.leaves(index)
        return Ports((Port("x", (1, x, "T", 1)),), (Port("y", (1, y, "T", 1)),))

    def _module(self, shard: str) -> nn.Module:
        from pytest_ane.models.families.zaya._ane import AneAttention, AneMixture, PublishedMixture

        if is_head(shard):
            return super()._module(shard)
        c, index, weights = self.config, block_index(shard), self._weights(self.dtype)
        if is_attention(index):
            return AneAttention(c, index, weights.cca(index))
        return (PublishedMixture if c.is_published else AneMixture)(c, index, weights)

    def _weights(self, dtype: npt.DTypeLike) -> ZayaWeights:
        from pytest_ane.models.families.zaya._weights import ZayaWeights

        return ZayaWeights(self.source, self.config, self.names, dtype)


def open_model(source: Source, cut: Cut) -> ZayaModel:
    """As `Family.open_model`."""
    ids = [wire.shard for wire in wiring(cut.shards)]
    config, names = ZayaConfig.read(source, blocks.slices(ids), cut)
    blocks.check_depth(source.label, filter(blocks.is_block, ids), len(config.layers))

    def exact() -> ZayaReference:
        from pytest_ane.models.reference.zaya import ZayaReference

        return ZayaReference(source)

    return ZayaModel(source, config, names, cut, exact)


def layout(description: dict[str, Any], shard: str) -> AneLayout:
    """A shard's layout from `ZayaModel.description`, without the weights."""
    return decoder_layout(ZayaConfig.from_description(description), shard)
