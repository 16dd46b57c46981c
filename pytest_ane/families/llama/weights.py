"""Llama tensors from a source, one shard at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_ane.families.blocks import slice_bounds
from pytest_ane.families.llama.checkpoint import EMBEDDING, OUTPUT, CheckpointAsGGUF
from pytest_ane.families.llama.config import LlamaConfig
from pytest_ane.sources import Source


@dataclass(frozen=True)
class BlockWeights:
    """One block's float32 tensors, projections as `[out, in]`."""

    attention_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    ffn_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class HeadWeights:
    """One vocabulary slice of the head: final norm `[C]` and projection `[V / slices, C]`."""

    norm: Tensor
    projection: Tensor


def read_block(source: Source, config: LlamaConfig, index: int) -> BlockWeights:
    """Read one block; GGUF's permuted Q and K rows are put back for a rotate-half RoPE."""
    width, kv = config.width, config.kv_heads * config.head
    halves = (lambda w, heads: w) if isinstance(source, CheckpointAsGGUF) else unpermute
    read = _reader(source, f"blk.{index}.")
    return BlockWeights(
        attention_norm=read("attn_norm", (width,)),
        q=halves(read("attn_q", (config.heads * config.head, width)), config.heads),
        k=halves(read("attn_k", (kv, width)), config.kv_heads),
        v=read("attn_v", (kv, width)),
        o=read("attn_output", (width, config.heads * config.head)),
        ffn_norm=read("ffn_norm", (width,)),
        gate=read("ffn_gate", (config.ffn, width)),
        up=read("ffn_up", (config.ffn, width)),
        down=read("ffn_down", (width, config.ffn)),
    )


def read_head(source: Source, config: LlamaConfig, index: int) -> HeadWeights:
    """Read one slice of the head, which is the embedding where the file has no `output.weight`."""
    rows = range(*slice_bounds(config.vocabulary, config.slices, index))
    name = OUTPUT if OUTPUT in source.names else EMBEDDING
    projection = torch.from_numpy(source.rows(name, rows, config.width, config.vocabulary))
    return HeadWeights(_reader(source, "")("output_norm", (config.width,)), projection)


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Rows from GGUF's interleaved pairs to halves: `[h, d/2, 2, in]` to `[h, 2, d/2, in]`.

    llama.cpp's converter stores Q and K of this architecture for a RoPE over adjacent pairs.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _reader(source: Source, prefix: str) -> Callable[[str, tuple[int, ...]], Tensor]:
    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(source.tensor(f"{prefix}{name}.weight", shape))

    return read
