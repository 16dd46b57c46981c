"""A Gemma 4 model over a source: the decoder core's attention and head, and packs of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families.base import Port, Ports, Reference, Routing, Undecided
from pytest_ane.models.families.blocks import is_head
from pytest_ane.models.families.decoder import DecoderConfig, DecoderModel
from pytest_ane.models.families.gemma4.config import own_experts
from pytest_ane.models.families.gemma4.shards import layer_shards, pack_of, part
from pytest_ane.models.families.layout import AneLayout

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.gemma4.weights import Weights

T = TypeVar("T")


class Gemma4Model(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    dtype: npt.DTypeLike = np.float16
    """Of packs and heads, which are large, as they are converted."""

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the layers that the cut leaves out."""
        listed = {part(shard) for shard in self.shards if not is_head(shard)}
        every = (s for i in range(len(self.config.layers)) for s in layer_shards(i))
        return [shard for shard in every if part(shard) not in listed]

    @property
    def weights(self) -> Weights:
        """The source by the family's names."""
        return self._weights(np.float32)

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.config, shard)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.models.families.decoder.reference import attended
        from pytest_ane.models.families.gemma4.reference import pack
        from pytest_ane.models.families.reference import run_each, run_together

        if is_head(shard):
            return super().reference(shard)
        c, weights = self.config, self.weights
        if (of := pack_of(shard)) is not None:
            return partial(run_together, lambda x: pack(x, weights, of))
        index = self.index(shard)
        w = weights.attention(index)
        return partial(run_each, lambda x: attended(x, w, c, index))

    def residual(self, shard: str) -> Reference | None:
        """What enters attention; what enters the last pack, times the layer's scalar."""
        from pytest_ane.models.families.reference import run_each

        if (of := pack_of(shard)) is None:
            return None if is_head(shard) else list
        if not of.combines:
            return None
        width, scalar = self.config.width, self.weights.scalar(of.layer)
        return partial(run_each, lambda x: x[:, :width] * scalar)

    def routed(self, shard: str) -> Routing | None:
        """Which of a pack's own experts are among the chosen."""
        from pytest_ane.models.families.gemma4.reference import routed

        return self._of_experts(shard, routed)

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a pack's own experts are among the chosen."""
        from pytest_ane.models.families.gemma4.reference import undecided

        return self._of_experts(shard, undecided)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if pack_of(shard) is None:
            return super().ports(shard)
        x = Port("x", (1, self.layout(shard).width, "T", 1))
        return Ports((x,), (Port("y", (1, self.config.width, "T", 1)),))

    def index(self, shard: str) -> int:
        """Number of the layer that a shard is of."""
        return part(shard).layer

    def _of_experts(
        self, shard: str, tell: Callable[..., T]
    ) -> Callable[[Sequence[FloatArray]], list[T]] | None:
        from pytest_ane.models.families.reference import each

        if (of := pack_of(shard)) is None:
            return None
        c, router = self.config, self.weights.router(of.layer)
        own = own_experts(c, of.pack)
        # Below the residual stream the last pack has the others' sum.
        return partial(each, lambda x: tell(x[:, : c.width].contiguous(), router, c, own))

    def _module(self, shard: str) -> nn.Module:
        """The shard's ANE form, attention in float32."""
        from pytest_ane.models.families.decoder.ane import StatefulAttention
        from pytest_ane.models.families.gemma4.ane import AneCombiner, AnePack

        if is_head(shard):
            return super()._module(shard)
        c, index, of = self.config, self.index(shard), pack_of(shard)
        if of is None:
            return StatefulAttention(c, index, self.weights.attention(index))
        weights = self._weights(self.dtype)
        pack = AnePack(c, weights.router(index), weights.banks(*of), of.pack)
        return AneCombiner(c, pack, weights.combiner(index)) if of.combines else pack

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.models.families.gemma4.weights import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    """A shard's layout; the last pack takes the sum of the others below the hidden states."""
    if (of := pack_of(shard)) is None:
        return config.head_layout if is_head(shard) else config.layout(part(shard).layer)
    return AneLayout(config.family, 2 * config.width if of.combines else config.width)
