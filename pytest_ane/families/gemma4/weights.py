"""Gemma 4 tensors from a source, one shard at a time, in float32 or fp16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_ane.families.blocks import slice_bounds
from pytest_ane.families.gemma4.config import Gemma4Config, root
from pytest_ane.sources import Source


@dataclass(frozen=True)
class AttentionWeights:
    """Norms `[C]` and `[d]`, projections `[out, in]`; `v` is None where values are the keys."""

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor | None
    o: Tensor
    q_norm: Tensor
    k_norm: Tensor
    post_norm: Tensor


@dataclass(frozen=True)
class RouterWeights:
    """`projection [experts, C]`, `scale [C]` with 1/sqrt(C) in it, `expert_scale [experts]`."""

    projection: Tensor
    scale: Tensor
    expert_scale: Tensor
    norm: Tensor
    """`pre_feedforward_layernorm_2 [C]`, of what enters the experts."""


@dataclass(frozen=True)
class CombinerWeights:
    """The dense network and what ends a layer: norms `[C]`, `scalar` a number `[1]`."""

    pre_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    dense_norm: Tensor
    expert_norm: Tensor
    post_norm: Tensor
    scalar: Tensor


@dataclass(frozen=True)
class HeadWeights:
    """Final norm `[C]` and one vocabulary slice `[V / slices, C]`."""

    norm: Tensor
    projection: Tensor


class Weights:
    """A source seen by this family's names; methods read from the source and keep nothing."""

    def __init__(
        self, source: Source, config: Gemma4Config, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self.source, self.config, self._dtype = source, config, dtype
        self._root = root(source)

    def attention(self, layer: int) -> AttentionWeights:
        """Attention weights of a layer; `v` is None where values are the keys."""
        c = self.config
        head, kv_heads = c.attention(layer)
        read = self._reader(layer)
        shared = c.shared and c.is_global(layer)
        return AttentionWeights(
            input_norm=read("input_layernorm.weight", c.width),
            q=read("self_attn.q_proj.weight", c.heads * head, c.width),
            k=read("self_attn.k_proj.weight", kv_heads * head, c.width),
            v=None if shared else read("self_attn.v_proj.weight", kv_heads * head, c.width),
            o=read("self_attn.o_proj.weight", c.width, c.heads * head),
            q_norm=read("self_attn.q_norm.weight", head),
            k_norm=read("self_attn.k_norm.weight", head),
            post_norm=read("post_attention_layernorm.weight", c.width),
        )

    def router(self, layer: int) -> RouterWeights:
        """Router weights of a layer, 1/sqrt(C) multiplied into its scale."""
        c, read = self.config, self._reader(layer)
        return RouterWeights(
            projection=read("router.proj.weight", c.experts, c.width),
            scale=read("router.scale", c.width) * c.width**-0.5,
            expert_scale=read("router.per_expert_scale", c.experts),
            norm=read("pre_feedforward_layernorm_2.weight", c.width),
        )

    def combiner(self, layer: int) -> CombinerWeights:
        """One layer's dense network and closing norms."""
        c, read = self.config, self._reader(layer)
        return CombinerWeights(
            pre_norm=read("pre_feedforward_layernorm.weight", c.width),
            gate=read("mlp.gate_proj.weight", c.ffn, c.width),
            up=read("mlp.up_proj.weight", c.ffn, c.width),
            down=read("mlp.down_proj.weight", c.width, c.ffn),
            dense_norm=read("post_feedforward_layernorm_1.weight", c.width),
            expert_norm=read("post_feedforward_layernorm_2.weight", c.width),
            post_norm=read("post_feedforward_layernorm.weight", c.width),
            scalar=self.scalar(layer),
        )

    def scalar(self, layer: int) -> Tensor:
        """What a layer's output is multiplied by, `[1]`."""
        return self._reader(layer)("layer_scalar", 1)

    def gate(self, layer: int, expert: int) -> Tensor:
        """An expert's gate `[F, C]`: the first half of its rows of the fused tensor."""
        f = self.config.expert
        return self._rows(layer, "gate_up_proj", 2 * f * expert, f, 2 * f)

    def up(self, layer: int, expert: int) -> Tensor:
        """An expert's up projection `[F, C]`: the second half of its rows."""
        f = self.config.expert
        return self._rows(layer, "gate_up_proj", 2 * f * expert + f, f, 2 * f)

    def down(self, layer: int, expert: int) -> Tensor:
        """An expert's down projection `[C, F]`."""
        c = self.config
        return self._rows(layer, "down_proj", c.width * expert, c.width, c.width)

    def head(self, index: int, parts: int) -> HeadWeights:
        """One of the `parts` vocabulary slices: rows of the embedding."""
        c, rows = self.config, range(*slice_bounds(self.config.vocabulary, parts, index))
        norm = self.source.tensor(f"{self._root}norm.weight", (c.width,), self._dtype)
        name = f"{self._root}embed_tokens.weight"
        projection = self.source.rows(name, rows, c.width, c.vocabulary, self._dtype)
        return HeadWeights(torch.from_numpy(norm), torch.from_numpy(projection))

    def _reader(self, layer: int) -> Callable[..., Tensor]:
        def read(name: str, *shape: int) -> Tensor:
            full = f"{self._root}layers.{layer}.{name}"
            return torch.from_numpy(self.source.tensor(full, shape, self._dtype))

        return read

    def _rows(self, layer: int, name: str, first: int, count: int, each: int) -> Tensor:
        """Some of a bank's rows, of which every expert has `each`."""
        c, rows = self.config, range(first, first + count)
        width = c.expert if name == "down_proj" else c.width
        full = f"{self._root}layers.{layer}.experts.{name}"
        return torch.from_numpy(self.source.rows(full, rows, width, each * c.experts, self._dtype))
