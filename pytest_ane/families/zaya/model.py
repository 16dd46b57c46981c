"""A ZAYA1 model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import blocks
from pytest_ane.families.base import Conversion, Cut, Port, Reference, Routing
from pytest_ane.families.blocks import block_index, head_index, is_head
from pytest_ane.families.layout import AneLayout, Rotary, attention_ports
from pytest_ane.families.zaya.config import EMBEDDING, KNOWN, ZayaConfig, is_attention, wiring
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

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, in fp16."""
        x = Port("x", (1, self.config.width, "T", 1))
        if is_head(shard):
            return self._head(x, head_index(shard))
        index = block_index(shard)
        return self._attention(x, index) if is_attention(index) else self._mixture(x, index)

    def _head(self, x: Port, index: int) -> Conversion:
        from pytest_ane.families.ane import AneHead
        from pytest_ane.families.zaya.weights import read_final_norm, read_head

        projection = read_head(self.source, self.config, index)
        norm = read_final_norm(self.source, self.config, np.float16)
        module = AneHead(norm, projection, self.config.epsilon)
        return Conversion(module, (x,), (Port("y", (1, len(projection), "T", 1)),))

    def _mixture(self, x: Port, index: int) -> Conversion:
        from pytest_ane.families.zaya.ane import AneMixture
        from pytest_ane.families.zaya.weights import Reader

        reader = Reader(self.source, self.config, index, np.float16)
        module = AneMixture(self.config, reader.mixture(), reader)
        return Conversion(module, (x,), (Port("y", x.shape),))

    def _attention(self, x: Port, index: int) -> Conversion:
        from pytest_ane.families.zaya.ane import AneAttention, state_shapes
        from pytest_ane.families.zaya.weights import Reader

        c = self.config
        module = AneAttention(c, Reader(self.source, c, index, np.float16).attention())
        states = tuple(Port(name, shape) for name, shape in state_shapes(c).items())
        ports = attention_ports(c.width, c.rotary, c.context)
        return Conversion(module, ports, (Port("y", x.shape),), states)


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
    rotary = Rotary(int(description["rotary"]), float(description["theta"]))
    return AneLayout("zaya", width, rotary, int(description["context"]), recurrent=("tail",))
