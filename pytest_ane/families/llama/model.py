"""A Llama model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import SourceError
from pytest_ane.families import blocks
from pytest_ane.families.base import Conversion, Cut, Port, Reference
from pytest_ane.families.blocks import block_index, head_index, is_head
from pytest_ane.families.layout import causal_mask, rotary
from pytest_ane.families.llama.checkpoint import EMBEDDING, KNOWN, CheckpointAsGGUF, is_checkpoint
from pytest_ane.families.llama.config import LlamaConfig, wiring
from pytest_ane.families.llama.layout import LlamaLayout, layout
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import check_names

if TYPE_CHECKING:
    from torch import nn


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

    def layout(self, shard: str) -> LlamaLayout:
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
        import torch

        from pytest_ane.families.llama.reference import ReferenceBlock, ReferenceHead
        from pytest_ane.families.llama.weights import read_block, read_head

        if is_head(shard):
            head = ReferenceHead(
                self.config, read_head(self.source, self.config, head_index(shard))
            )
        else:
            block = ReferenceBlock(
                self.config, read_block(self.source, self.config, block_index(shard))
            )

        def one(hidden: FloatArray) -> FloatArray:
            with torch.inference_mode():
                x = torch.from_numpy(hidden)
                if is_head(shard):
                    y = head(x)
                else:
                    tables = rotary(len(hidden), self.config.head, self.config.theta)
                    mask = causal_mask(len(hidden))
                    y = block(x, *(torch.from_numpy(t) for t in (*tables, mask)))
            result: FloatArray = y.numpy()
            return result

        return lambda sequences: [one(hidden) for hidden in sequences]

    def residual(self, shard: str) -> Reference | None:
        """What enters a block, as it is."""
        return None if is_head(shard) else list

    def routed(self, shard: str) -> None:
        """None: this architecture has no experts."""

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form in float32, and its ports."""
        from pytest_ane.families.ane import AneHead
        from pytest_ane.families.llama.ane import AneBlock, StatefulBlock
        from pytest_ane.families.llama.weights import read_block, read_head

        c = self.config
        x = Port("x", (1, c.width, "T", 1))
        module: nn.Module
        if is_head(shard):
            weights = read_head(self.source, c, head_index(shard))
            module = AneHead(weights.norm, weights.projection, c.epsilon)
            return Conversion(module, (x,), (Port("y", (1, len(weights.projection), "T", 1)),))
        block = read_block(self.source, c, block_index(shard))
        tables = (Port("cos", (1, 1, c.head, "T")), Port("sin", (1, 1, c.head, "T")))
        y = Port("y", x.shape)
        if c.context is None:
            mask = Port("mask", (1, 1, "T", "T"))
            return Conversion(AneBlock(c, block), (x, *tables, mask), (y,))
        masks = (Port("mask", (1, 1, "T", c.context)), Port("write", (1, 1, "T", c.context)))
        states = [Port(name, (c.kv_heads, 1, c.head, c.context)) for name in ("k_cache", "v_cache")]
        module = StatefulBlock(c, block)
        return Conversion(module, (x, *tables, *masks), (y,), tuple(states))


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
    for shard in ids:
        if not is_head(shard) and block_index(shard) >= config.layers:
            raise SourceError(f"{source.label}: has {config.layers} blocks, so no shard {shard}.")
    return LlamaModel(source, config, cut)


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """Norms near 1; matrices that keep the variance of what enters."""
    if len(shape) == 1:
        return Spread(std=0.1, mean=1.0)
    return Spread(1.0) if "embed_tokens" in name else Spread.of(shape[-1] ** -0.5, outliers=0.03)
