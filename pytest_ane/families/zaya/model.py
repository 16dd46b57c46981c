"""A ZAYA1 model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import blocks
from pytest_ane.families.base import Conversion, Cut, Port, Ports, Reference, Routing
from pytest_ane.families.blocks import block_index, head_index, is_head
from pytest_ane.families.layout import AneLayout, Rotary, attention_ports
from pytest_ane.families.zaya.config import (
    EMBEDDING,
    KNOWN,
    ZayaConfig,
    is_attention,
    state_shapes,
    wiring,
)
from pytest_ane.sources import Source
from pytest_ane.sources.settings import check_names


class ZayaModel:
    """One model; weights are read from the source shard by shard."""

    def __init__(self, source: Source, config: ZayaConfig, cut: Cut) -> None:
        self.source = source
        self.config = config
        self._cut = cut

    @property
    def description(self) -> dict[str, Any]:
        """The configuration, JSON-serialisable, from which layouts are rebuilt."""
        return asdict(self.config)

    @property
    def positions(self) -> int:
        """As many as a state holds."""
        return self.config.context

    @property
    def missing(self) -> Sequence[str]:
        """Layers that the cut leaves out."""
        return blocks.missing(self._cut.shards, self.config.layers)

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.description, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Embedding rows `[T, C]` of token ids, in float32."""
        return self.source.rows(EMBEDDING, ids, self.config.width, self.config.vocabulary)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.families.zaya import reference

        if is_head(shard):
            return reference.head(self.source, self.config, head_index(shard))
        index = block_index(shard)
        layer = reference.attention if is_attention(index) else reference.mixture
        return layer(self.source, self.config, index)

    def residual(self, shard: str) -> Reference | None:
        """What enters a layer, times its residual scale, plus its residual bias."""
        from pytest_ane.families.zaya import reference

        if is_head(shard):
            return None
        return reference.residual(self.source, self.config, block_index(shard))

    def routed(self, shard: str) -> Routing | None:
        """Experts of a mixture with more than an even share of the router's weight."""
        from pytest_ane.families.zaya import reference

        if is_head(shard) or is_attention(block_index(shard)):
            return None
        return reference.routing(self.source, self.config, block_index(shard))

    def undecided(self, shard: str) -> None:
        """None: all experts run, and weights are continuous."""

    def filling(self, shard: str) -> None:
        """None: its attention has no window."""

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, in fp16."""
        ports = self.ports(shard)
        return Conversion(self._module(shard), ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c = self.config
        x = Port("x", (1, c.width, "T", 1))
        if is_head(shard):
            return Ports((x,), (blocks.head_port(c.vocabulary, c.slices, shard),))
        y = Port("y", x.shape)
        if not is_attention(block_index(shard)):
            return Ports((x,), (y,))
        states = tuple(Port(name, shape) for name, shape in state_shapes(c).items())
        return Ports(attention_ports(c.width, c.rotary, c.context), (y,), states)

    def _module(self, shard: str) -> Any:
        from pytest_ane.families.ane import AneHead
        from pytest_ane.families.zaya.ane import AneAttention, AneMixture
        from pytest_ane.families.zaya.weights import Reader, read_final_norm, read_head

        c = self.config
        if is_head(shard):
            projection = read_head(self.source, c, head_index(shard))
            norm = read_final_norm(self.source, c, np.float16)
            return AneHead(norm, projection, c.epsilon)
        index = block_index(shard)
        reader = Reader(self.source, c, index, np.float16)
        if is_attention(index):
            return AneAttention(c, reader.attention())
        return AneMixture(c, reader.mixture(), reader)


def open_model(source: Source, cut: Cut) -> ZayaModel:
    """See a source as a ZAYA1 model cut into these shards.

    Raises:
        SourceError: another architecture or variant, or a layer the model does not have.
        ManifestError: a shard id that is neither a layer nor a head slice, or a slice left out.
    """
    ids = [wire.shard for wire in wiring(cut.shards)]
    slices = blocks.slices(ids)
    hint = "It reads the names of the first release, which Zyphra keeps as ZAYA1-8B-legacy."
    check_names(source.label, "zaya", source.names, KNOWN, hint)
    config = ZayaConfig.read(source, slices, cut)
    blocks.check_depth(source.label, ids, config.layers)
    return ZayaModel(source, config, cut)


def layout(description: dict[str, Any], shard: str) -> AneLayout:
    """A shard's layout from `ZayaModel.description`, without the weights.

    What the two last positions leave to the next ones, `tail`, has no places as the cache has.
    """
    width = int(description["width"])
    if is_head(shard) or not is_attention(block_index(shard)):
        return AneLayout("zaya", width)
    rotary = Rotary.plain(int(description["rotary"]), float(description["theta"]))
    return AneLayout("zaya", width, rotary, int(description["context"]), recurrent=("tail",))
