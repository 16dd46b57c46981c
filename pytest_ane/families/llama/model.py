"""A Llama model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import blocks
from pytest_ane.families.base import Conversion, Cut, Port, Ports, Reference
from pytest_ane.families.blocks import block_index, head_index, is_head
from pytest_ane.families.layout import AneLayout, Rotary, attention_ports
from pytest_ane.families.llama.checkpoint import EMBEDDING, KNOWN, CheckpointAsGGUF, is_checkpoint
from pytest_ane.families.llama.config import LlamaConfig, wiring
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import check_names


class LlamaModel:
    """One model; weights are read from the source shard by shard."""

    def __init__(self, source: Source, config: LlamaConfig, cut: Cut) -> None:
        self.source = source
        self.config = config
        self._cut = cut

    @property
    def positions(self) -> int:
        """As many as a stateless call takes, or as a state holds."""
        return self.config.context or self._cut.max_tokens

    @property
    def missing(self) -> Sequence[str]:
        """Blocks that the cut leaves out."""
        return blocks.missing(self._cut.shards, self.config.layers)

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.description, shard)

    @property
    def description(self) -> dict[str, Any]:
        """The configuration, JSON-serialisable, from which layouts are rebuilt."""
        return asdict(self.config)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Embedding rows `[T, C]` of token ids, in float32."""
        return self.source.rows(EMBEDDING, ids, self.config.width, self.config.vocabulary)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        from pytest_ane.families.llama import reference
        from pytest_ane.families.llama.weights import read_block, read_head
        from pytest_ane.families.reference import run_each

        c = self.config
        if is_head(shard):
            head = read_head(self.source, c, head_index(shard))
            return partial(run_each, lambda x: reference.logits(x, head, c))
        block = read_block(self.source, c, block_index(shard))
        return partial(run_each, lambda x: reference.block(x, block, c))

    def residual(self, shard: str) -> Reference | None:
        """What enters a block, as it is."""
        return None if is_head(shard) else list

    def routed(self, shard: str) -> None:
        """None: this architecture has no experts."""

    def undecided(self, shard: str) -> None:
        """None: nothing is chosen."""

    def filling(self, shard: str) -> None:
        """None: its attention has no window."""

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form in float32, and its ports."""
        from pytest_ane.families.ane import AneHead
        from pytest_ane.families.llama.ane import AneBlock, StatefulBlock
        from pytest_ane.families.llama.weights import read_block, read_head

        c, ports = self.config, self.ports(shard)
        if is_head(shard):
            weights = read_head(self.source, c, head_index(shard))
            head = AneHead(weights.norm, weights.projection, c.epsilon)
            return Conversion(head, ports.inputs, ports.outputs)
        block = read_block(self.source, c, block_index(shard))
        module = AneBlock(c, block) if c.context is None else StatefulBlock(c, block)
        return Conversion(module, ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c = self.config
        x, *others = attention_ports(c.width, c.head, c.context)
        if is_head(shard):
            return Ports((x,), (blocks.head_port(c.vocabulary, c.slices, shard),))
        y = Port("y", x.shape)
        if c.context is None:
            return Ports((x, *others), (y,))
        states = [Port(name, (c.kv_heads, 1, c.head, c.context)) for name in ("k_cache", "v_cache")]
        return Ports((x, *others), (y,), tuple(states))


def open_model(source: Source, cut: Cut) -> LlamaModel:
    """See a GGUF file, a published checkpoint or a seed as a Llama model cut into these shards.

    Raises:
        SourceError: another architecture or variant, or a block the model does not have.
        ManifestError: a shard id that is neither a block nor a head slice, or a slice left out.
    """
    ids = [wire.shard for wire in wiring(cut.shards)]
    slices = blocks.slices(ids)
    source = CheckpointAsGGUF(source) if is_checkpoint(source) else source
    check_names(source.label, "llama", source.names, KNOWN)
    config = LlamaConfig.read(source, slices=slices, cut=cut)
    blocks.check_depth(source.label, ids, config.layers)
    return LlamaModel(source, config, cut)


def layout(description: dict[str, Any], shard: str) -> AneLayout:
    """A shard's layout from `LlamaModel.description`, without the weights."""
    width = int(description["width"])
    if is_head(shard):
        return AneLayout("llama", width)
    rotary = Rotary(int(description["head"]), float(description["theta"]))
    return AneLayout("llama", width, rotary, description["context"])


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """Norms near 1; matrices that keep the variance of what enters."""
    if len(shape) == 1:
        return Spread(std=0.1, mean=1.0)
    return Spread(1.0) if "embed_tokens" in name else Spread.of(shape[-1] ** -0.5, outliers=0.03)
