"""A Gemma 4 model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import SourceError
from pytest_ane.families import blocks
from pytest_ane.families.base import (
    Conversion,
    Cut,
    Filling,
    Port,
    Ports,
    Reference,
    Routing,
    Undecided,
)
from pytest_ane.families.gemma4 import shards
from pytest_ane.families.gemma4.config import Gemma4Config, root
from pytest_ane.families.gemma4.shards import role
from pytest_ane.families.layout import AneLayout, Rotary, attention_ports
from pytest_ane.sources import Source


class Gemma4Model:
    """One model; weights are read from the source shard by shard."""

    def __init__(self, source: Source, config: Gemma4Config, cut: Cut) -> None:
        self.source, self.config, self._cut = source, config, cut
        self._slices = blocks.slices(cut.shards)

    @property
    def positions(self) -> int:
        """As many as the states hold."""
        return self._cut.context

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the layers that the cut leaves out."""
        listed = set(map(role, self._cut.shards))
        every = [s for i in range(self.config.layers) for s in shards.layer_shards(i)]
        return [shard for shard in every if role(shard) not in listed]

    @property
    def description(self) -> dict[str, Any]:
        """The configuration and the states' length, JSON-serialisable."""
        return {**asdict(self.config), "context": self._cut.context}

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.description, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Embedding rows `[T, C]` times sqrt(C)."""
        c, name = self.config, f"{root(self.source)}embed_tokens.weight"
        rows = self.source.rows(name, ids, c.width, c.vocabulary)
        scaled: FloatArray = rows * np.float32(c.width**0.5)
        return scaled

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.families.gemma4.reference import run
        from pytest_ane.families.gemma4.weights import Weights

        weights = Weights(self.source, self.config)
        return partial(run, weights, role(shard), self.layout(shard), self._slices)

    def residual(self, shard: str) -> Reference | None:
        """What enters attention; what enters the last pack, times the layer's scalar."""
        from pytest_ane.families.gemma4.reference import residual
        from pytest_ane.families.gemma4.weights import Weights

        of = role(shard)
        if of.kind == "attn":
            return list
        return partial(residual, Weights(self.source, self.config), of) if of.combines else None

    def routed(self, shard: str) -> Routing | None:
        """Which of a pack's own experts are among the chosen."""
        from pytest_ane.families.gemma4.reference import routed
        from pytest_ane.families.gemma4.weights import Weights

        of = role(shard)
        weights = Weights(self.source, self.config)
        return partial(routed, weights, of) if of.kind == "pack" else None

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a pack's own experts are among the chosen."""
        from pytest_ane.families.gemma4.reference import undecided
        from pytest_ane.families.gemma4.weights import Weights

        of = role(shard)
        weights = Weights(self.source, self.config)
        return partial(undecided, weights, of) if of.kind == "pack" else None

    def filling(self, shard: str) -> Filling | None:
        """Keys and values of a sequence, in their places."""
        from pytest_ane.families.gemma4.reference import filled
        from pytest_ane.families.gemma4.weights import Weights

        of = role(shard)
        weights = Weights(self.source, self.config)
        return partial(filled, weights, of, self.layout(shard)) if of.kind == "attn" else None

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form, in fp16."""
        ports = self.ports(shard)
        return Conversion(self._module(shard), ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c, of, context = self.config, role(shard), self._cut.context
        x = Port("x", (1, c.width, "T", 1))
        if of.kind == "head":
            return Ports((x,), (blocks.head_port(c.vocabulary, self._slices, shard),))
        y = Port("y", x.shape)
        if of.kind == "pack":
            return Ports((Port("x", (1, 2 * c.width, "T", 1)) if of.combines else x,), (y,))
        head, kv_heads = c.attention(int(of.layer))
        states = [Port(name, (kv_heads, 1, head, context)) for name in ("k_cache", "v_cache")]
        return Ports(attention_ports(c.width, head, context), (y,), tuple(states))

    def _module(self, shard: str) -> Any:
        from pytest_ane.families.gemma4.ane import AneAttention, AneHead
        from pytest_ane.families.gemma4.packs import AneCombiner, AnePack, read_banks
        from pytest_ane.families.gemma4.weights import Weights

        c, of = self.config, role(shard)
        weights = Weights(self.source, c, np.float16)
        if of.kind == "head":
            return AneHead(c, weights.head(of.index, self._slices))
        layer = int(of.layer)
        if of.kind == "attn":
            return AneAttention(c, layer, weights.attention(layer), self._cut.context)
        banks = read_banks(weights, layer, of.index)
        pack = AnePack(c, weights.router(layer), banks, of.index)
        return AneCombiner(c, pack, weights.combiner(layer)) if of.combines else pack


def open_model(source: Source, cut: Cut) -> Gemma4Model:
    """See a checkpoint or a synthetic source as a Gemma 4 model cut into these shards.

    Raises:
        SourceError: another variant, tensors this family does not compute with, or a layer the
            model does not have.
        ManifestError: a shard id that is none of this family's, or a head slice left out.
    """
    config = Gemma4Config.read(source)
    root(source)
    for shard in shards.in_order(cut.shards):
        of = role(shard)
        if of.kind != "head" and of.layer >= config.layers:
            raise SourceError(f"{source.label}: has {config.layers} layers, so no shard {shard}.")
    return Gemma4Model(source, config, cut)


def layout(description: dict[str, Any], shard: str) -> AneLayout:
    """A shard's layout from `Gemma4Model.description`, without the weights.

    The last pack of a layer takes the sum of the other packs below the hidden states.
    """
    d, of = description, role(shard)
    width = int(d["width"])
    if of.kind != "attn":
        return AneLayout("gemma4", 2 * width if of.combines else width)
    if of.layer in d["global_layers"]:
        rotary = Rotary.plain(d["global_head"], d["global_theta"], d["global_rotated"])
        return AneLayout("gemma4", width, rotary, d["context"])
    rotary = Rotary.plain(d["head"], d["theta"])
    return AneLayout("gemma4", width, rotary, d["context"], d["window"])
