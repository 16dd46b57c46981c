"""A Llama model over a source: embedding, float32 references and ANE forms of its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_ane.errors import ManifestError, SourceError
from pytest_ane.families.base import Conversion, Port
from pytest_ane.families.llama.config import LlamaConfig, block_index, chain, head_index, is_head
from pytest_ane.families.llama.layout import LlamaLayout, causal_mask, rotary
from pytest_ane.families.llama.names import EMBEDDING, check_names
from pytest_ane.sources import Source
from pytest_ane.sources.base import FloatArray

if TYPE_CHECKING:
    from torch import nn


class LlamaModel:
    """One model; weights are read from the source when a shard is asked for."""

    def __init__(self, source: Source, config: LlamaConfig) -> None:
        self.source = source
        self.config = config

    @property
    def layout(self) -> LlamaLayout:
        """How hidden states enter and leave the shards."""
        return LlamaLayout(self.config.width, self.config.head, self.config.theta)

    @property
    def description(self) -> dict[str, Any]:
        """The configuration, JSON-serialisable."""
        return asdict(self.config)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Embedding rows `[T, C]`."""
        return self.source.rows(EMBEDDING, ids, self.config.width)

    def reference(self, shard: str) -> Callable[[FloatArray], FloatArray]:
        """The float32 module of a shard on `[T, C]`."""
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

        def run(hidden: FloatArray) -> FloatArray:
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

        return run

    def conversion(self, shard: str) -> Conversion:
        """The shard's ANE form."""
        from pytest_ane.families.llama.ane import AneBlock, AneHead
        from pytest_ane.families.llama.weights import read_block, read_head

        c = self.config
        x = Port("x", (1, c.width, "T", 1))
        module: nn.Module
        if is_head(shard):
            weights = read_head(self.source, c, head_index(shard))
            module = AneHead(c, weights)
            return Conversion(module, (x,), (Port("y", (1, len(weights.projection), "T", 1)),))
        module = AneBlock(c, read_block(self.source, c, block_index(shard)))
        tables = (Port("cos", (1, 1, c.head, "T")), Port("sin", (1, 1, c.head, "T")))
        mask = Port("mask", (1, 1, "T", "T"))
        return Conversion(module, (x, *tables, mask), (Port("y", x.shape),))


def open_model(source: Source, shards: Sequence[str]) -> LlamaModel:
    """See a GGUF source as a Llama model cut into these shards.

    Raises:
        SourceError: another architecture or variant, or a block the model does not have.
        ManifestError: a shard id that is neither a block nor a head slice, or a slice left out.
    """
    blocks, heads = chain(shards)
    if [head_index(shard) for shard in heads] != list(range(len(heads))):
        raise ManifestError(
            f"The head's slices are {', '.join(heads)}; number them head.0 to "
            f"head.{len(heads) - 1}, so that together they are the whole vocabulary."
        )
    check_names(source)
    config = LlamaConfig.read(source, slices=max(len(heads), 1))
    for shard in blocks:
        if block_index(shard) >= config.layers:
            raise SourceError(f"{source.path}: has {config.layers} blocks, so no shard {shard}.")
    return LlamaModel(source, config)
