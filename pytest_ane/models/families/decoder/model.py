"""A decoder over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import blocks
from pytest_ane.models.families.base import (
    Conversion,
    Cut,
    Filling,
    Port,
    Ports,
    Reference,
    Routing,
    Undecided,
)
from pytest_ane.models.families.blocks import block_index, head_index, is_head
from pytest_ane.models.families.decoder.config import DecoderConfig
from pytest_ane.models.families.decoder.names import Names
from pytest_ane.models.families.layout import AneLayout, attention_ports
from pytest_ane.models.sources import Source

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.decoder.weights import Weights

T = TypeVar("T")


class DecoderModel:
    """One model; weights are read from the source shard by shard."""

    dtype: npt.DTypeLike = np.float32
    """Of what is converted."""

    def __init__(self, source: Source, config: DecoderConfig, names: Names, cut: Cut) -> None:
        self.source, self.config, self.names = source, config, names
        self._cut = cut

    @property
    def shards(self) -> Sequence[str]:
        """As the model is cut."""
        return self._cut.shards

    @property
    def positions(self) -> int:
        """As many as a stateless call takes, or as a state holds."""
        return self.config.context or self._cut.max_tokens

    @property
    def missing(self) -> Sequence[str]:
        """Blocks that the cut leaves out."""
        return blocks.missing(self._cut.shards, len(self.config.layers))

    @property
    def description(self) -> dict[str, Any]:
        """The configuration, JSON-serialisable, from which layouts are rebuilt."""
        return self.config.description

    @property
    def weights(self) -> Weights:
        """The source by the family's names, in float32."""
        return self._weights(np.float32)

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.config, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Embedding rows `[T, C]` of token ids, in float32, scaled."""
        scaled: FloatArray = self.weights.embedding(ids) * np.float32(self.config.embedding_scale)
        return scaled

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.models.families.decoder import reference
        from pytest_ane.models.families.reference import run_each

        c = self.config
        if is_head(shard):
            head = self.weights.head(head_index(shard))
            return partial(run_each, lambda x: reference.logits(x, head, c))
        index, block = self._block(shard)
        return partial(run_each, lambda x: reference.block(x, block, c, index))

    def residual(self, shard: str) -> Reference | None:
        """What enters a block, as it is."""
        return None if is_head(shard) else list

    def routed(self, shard: str) -> Routing | None:
        """Which experts a sparse layer's positions choose."""
        from pytest_ane.models.families.decoder.reference import routed

        return self._of_experts(shard, routed)

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a sparse layer's experts are chosen."""
        from pytest_ane.models.families.decoder.reference import undecided

        return self._of_experts(shard, undecided)

    def filling(self, shard: str) -> Filling | None:
        """Keys and values of a sequence in their places, for a layer with a window."""
        if self.config.context is None or self.layout(shard).window is None:
            return None
        from pytest_ane.models.families.decoder.reference import filled
        from pytest_ane.models.families.reference import each

        c, index = self.config, self.index(shard)
        w = self.weights.attention(index)
        return lambda hidden: each(lambda x: filled(x, w, c, index), [hidden])[0]

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, and its ports."""
        ports = self.ports(shard)
        return Conversion(self._module(shard), ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c = self.config
        if is_head(shard):
            x = Port("x", (1, c.width, "T", 1))
            return Ports((x,), (blocks.head_port(c.vocabulary, c.slices, shard),))
        layout = self.layout(shard)
        turned = 0 if layout.rotary is None else layout.rotary.channels
        inputs = attention_ports(c.width, turned, layout.context)
        y = Port("y", inputs[0].shape)
        if layout.context is None:
            return Ports(inputs, (y,))
        head, kv_heads = c.heads_of(self.index(shard))
        shape = (kv_heads, 1, head, layout.context)
        return Ports(inputs, (y,), tuple(Port(name, shape) for name in ("k_cache", "v_cache")))

    def index(self, shard: str) -> int:
        """Number of the layer that a shard is of."""
        return block_index(shard)

    def _of_experts(
        self, shard: str, tell: Callable[..., T]
    ) -> Callable[[Sequence[FloatArray]], list[T]] | None:
        """What is told of each sequence by a sparse layer; None of others."""
        if is_head(shard) or self.config.mixture_of(block_index(shard)) is None:
            return None
        from pytest_ane.models.families.reference import each

        index, block = self._block(shard)
        return partial(each, lambda x: tell(x, block, self.config, index))

    def _block(self, shard: str) -> tuple[int, Any]:
        """A block's number, and its weights as the family's reference takes them."""
        index = self.index(shard)
        return index, self.weights.block(index)

    def _module(self, shard: str) -> nn.Module:
        """The shard's ANE form."""
        from pytest_ane.models.families.ane import AneHead
        from pytest_ane.models.families.decoder.ane import AneBlock, StatefulBlock

        c, weights = self.config, self._weights(self.dtype)
        if is_head(shard):
            norm, projection = weights.head(head_index(shard))
            return AneHead(norm * c.logit_scale, projection, c.stream_epsilon, c.logit_cap)
        form, index = AneBlock if c.context is None else StatefulBlock, block_index(shard)
        return form(c, index, weights.block(index))

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.models.families.decoder.weights import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    """A shard's layout, without the weights."""
    return config.head_layout if is_head(shard) else config.layout(block_index(shard))
