"""BERT: an encoder with post-norm blocks, and pooling into one embedding. MiniLM, BGE, E5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families import Conversion, Cut, Inputs, Port, Ports, Reference
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import starts_whole
from pytest_ane.models.families._layout import MASKED, AneLayout
from pytest_ane.models.families.bert._config import POOLING, VERSION, BertConfig, read, wiring
from pytest_ane.models.families.decoder._model import spread
from pytest_ane.models.sources import Source

if TYPE_CHECKING:
    from pytest_ane.models.families.bert._forms import Weights
    from pytest_ane.models.reference.bert import BertReference


__all__ = ["POOLING", "VERSION", "BertModel", "spread", "starts_whole", "wiring"]

converted = ("bert",)
"""Values of GGUF's `general.architecture` that are this family's."""


def open_model(source: Source, cut: Cut) -> BertModel:
    shards = [wire.shard for wire in wiring(cut.shards)]
    config = read(source, cut.max_tokens)
    blocks.check_depth(source.label, filter(blocks.is_block, shards), config.layers)
    return BertModel(source, config, shards)


def layout(description: dict[str, Any], shard: str) -> BertLayout:
    config = BertConfig(**description)
    return BertLayout("bert", config.width, length=config.length, pools=shard == POOLING)


@dataclass(frozen=True)
class BertLayout(AneLayout):
    """Hidden states enter as `x [1, C, N, 1]` with a `mask [1, 1, 1, N]` of N fixed positions.

    A text's T positions come first; the mask is 0 there, and large and negative at padding. N is
    `length`; where it `pools`, the output is one row for the whole text.
    """

    attends: bool = True
    length: int = 1
    pools: bool = False
    causal: bool = False

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """Inputs for a whole text's hidden states `[T, C]`.

        Padding is the last row's negative: unlike any row of the text, so that what leaks through
        a mask shows.

        Raises:
            ExecutionError: the text is longer than a call, or comes in several.
        """
        rest = self.length - len(hidden)
        if start or rest < 0:
            raise ExecutionError(
                f"an encoder takes a text of up to {self.length} positions in one call, not "
                f"positions {start} to {start + len(hidden) - 1}; raise max-tokens in shards.toml."
            )
        rows = np.concatenate([hidden, np.repeat(-hidden[-1:], rest, axis=0)])
        mask = np.where(np.arange(self.length) < len(hidden), np.float32(0), np.float32(MASKED))
        x = np.ascontiguousarray(rows.T)[None, :, :, None]
        return {"x": x, "mask": mask[None, None, None]}


class BertModel:
    """One model; weights are read from the source shard by shard."""

    def __init__(self, source: Source, config: BertConfig, shards: Sequence[str]) -> None:
        self.source, self.config, self.shards = source, config, shards
        self.positions, self.description = config.length, asdict(config)
        self.missing = blocks.missing(shards, config.layers)

    @property
    def weights(self) -> Weights:
        """The source by the names of its file."""
        from pytest_ane.models.families.bert._forms import Weights

        return Weights(self.source, self.config)

    def layout(self, shard: str) -> BertLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.description, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` of a text from position 0, all of the first token type."""
        return self.weights.embedding(ids).numpy()

    @cached_property
    def exact(self) -> BertReference:
        """The model of transformers that shards are held against."""
        from pytest_ane.models.reference.bert import BertReference

        return BertReference(self.source, {"model_type": "bert"})

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        """What transformers gives the first block."""
        return self.exact.embed(ids)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard."""
        if shard != POOLING:
            return self.exact.layer(blocks.block_index(shard)).run
        from pytest_ane.models.reference.bert import pooling

        return pooling(self.source)

    def independent(self, shard: str) -> bool:
        """Transformers has the blocks; pooling is ours on both sides."""
        return shard != POOLING

    def residual(self, shard: str) -> Reference | None:
        """What a block gives if neither of its halves adds anything."""
        return None if shard == POOLING else self.exact.path(blocks.block_index(shard))

    def conversion(self, shard: str) -> Conversion:
        """The ANE form of a shard."""
        from pytest_ane.models.families.bert._forms import AneBlock, AnePooling

        c, ports = self.config, self.ports(shard)
        if shard == POOLING:
            return Conversion(AnePooling(c), ports.inputs, ports.outputs)
        weights = self.weights.block(blocks.block_index(shard))
        return Conversion(AneBlock(c, weights), ports.inputs, ports.outputs)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c, pools = self.config, shard == POOLING
        x, mask = Port("x", (1, c.width, c.length, 1)), Port("mask", (1, 1, 1, c.length))
        inputs = (x,) if pools and c.pooling == "cls" else (x, mask)
        return Ports(inputs, (Port("y", (1, c.width, 1 if pools else c.length, 1)),))
