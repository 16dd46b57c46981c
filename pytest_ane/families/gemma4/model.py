"""A Gemma 4 model over a source: the decoder core's attention and head, and packs of experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pytest_ane.families.base import Conversion, Port, Ports, Reference, Routing, Undecided
from pytest_ane.families.decoder import DecoderConfig, DecoderModel
from pytest_ane.families.gemma4 import shards
from pytest_ane.families.gemma4.shards import role
from pytest_ane.families.layout import AneLayout

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.families.gemma4.weights import Weights


class Gemma4Model(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    dtype: npt.DTypeLike = np.float16
    """Of packs and heads, which are large, as they are converted."""

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the layers that the cut leaves out."""
        listed = set(map(role, self.shards))
        every = [s for i in range(len(self.config.layers)) for s in shards.layer_shards(i)]
        return [shard for shard in every if role(shard) not in listed]

    @property
    def weights(self) -> Weights:
        """The source by the family's names."""
        return self._weights(np.float32)

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.config, shard)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.families.decoder.reference import attended
        from pytest_ane.families.gemma4.reference import pack
        from pytest_ane.families.reference import run_each, run_together

        of = role(shard)
        if of.kind == "head":
            return super().reference(shard)
        if of.kind == "pack":
            return partial(run_together, pack(self.weights, of))
        index, c = self.index(shard), self.config
        w = self.weights.attention(index)
        return partial(run_each, lambda x: attended(x, w, c, index))

    def residual(self, shard: str) -> Reference | None:
        """What enters attention; what enters the last pack, times the layer's scalar."""
        from pytest_ane.families.gemma4.reference import residual

        of = role(shard)
        if of.kind == "attn":
            return list
        return partial(residual, self.weights, of) if of.combines else None

    def routed(self, shard: str) -> Routing | None:
        """Which of a pack's own experts are among the chosen."""
        from pytest_ane.families.gemma4.reference import routed

        of = role(shard)
        return partial(routed, self.weights, of) if of.kind == "pack" else None

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a pack's own experts are among the chosen."""
        from pytest_ane.families.gemma4.reference import undecided

        of = role(shard)
        return partial(undecided, self.weights, of) if of.kind == "pack" else None

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, attention in float32."""
        ports = self.ports(shard)
        return Conversion(self._module(shard), ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if role(shard).kind != "pack":
            return super().ports(shard)
        x, y = (
            Port(n, (1, w, "T", 1))
            for n, w in (("x", self.layout(shard).width), ("y", self.config.width))
        )
        return Ports((x,), (y,))

    def index(self, shard: str) -> int:
        """Number of the layer that a shard is of."""
        return int(role(shard).layer)

    def _module(self, shard: str) -> nn.Module:
        from pytest_ane.families.ane import AneHead
        from pytest_ane.families.decoder.ane import StatefulAttention
        from pytest_ane.families.gemma4.ane import AneCombiner, AnePack

        c, of = self.config, role(shard)
        if of.kind == "attn":
            index = self.index(shard)
            return StatefulAttention(c, index, self.weights.attention(index))
        weights = self._weights(self.dtype)
        if of.kind == "head":
            return AneHead(*weights.head(of.index), c.epsilon, c.logit_cap)
        layer = self.index(shard)
        pack = AnePack(c, weights.router(layer), weights.banks(layer, of.index), of.index)
        return AneCombiner(c, pack, weights.combiner(layer)) if of.combines else pack

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.families.gemma4.weights import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    """A shard's layout; the last pack takes the sum of the others below the hidden states."""
    of = role(shard)
    if of.kind == "attn":
        return config.layout(int(of.layer))
    return AneLayout(config.family, 2 * config.width if of.combines else config.width)
