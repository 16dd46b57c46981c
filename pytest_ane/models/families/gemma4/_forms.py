"""Gemma 4's tensors besides the decoder core's, and the ANE form of its packs.

Source: `modeling_gemma4.py` of Hugging Face transformers: docs/reference/families/gemma4.md. There
is no top-k and no gather, which would leave the ANE (rules R009, R012): every pack compares all
router logits pairwise, and weights its experts with exact zeros where they are not chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pytest_ane.models.families._ane import (
    ScaledRMSNorm,
    cast_to,
    constant,
    pointwise,
    scaled_to_unit,
)
from pytest_ane.models.families.decoder import _forms as decoder
from pytest_ane.models.families.decoder._config import FEED_FORWARD, DecoderConfig, Mixture
from pytest_ane.models.families.decoder._forms import (
    Linear,
    Router,
    activated,
    projection,
    weighted,
)
from pytest_ane.models.families.gemma4 import own_experts


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

    ffn_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear
    dense_norm: Tensor
    expert_norm: Tensor
    ffn_post_norm: Tensor
    scalar: Tensor


class Weights(decoder.Weights):
    @property
    def mixture(self) -> Mixture:
        assert self.config.mixture is not None
        return self.config.mixture

    def router(self, layer: int) -> RouterWeights:
        width, experts = self.config.width, self.mixture.experts
        return RouterWeights(
            projection=self._layer_tensor(layer, "router.proj.weight", experts, width),
            scale=self._layer_tensor(layer, "router.scale", width) * width**-0.5,
            expert_scale=self._layer_tensor(layer, "router.per_expert_scale", experts),
            norm=self._layer_tensor(layer, "pre_feedforward_layernorm_2.weight", width),
        )

    def combiner(self, layer: int) -> CombinerWeights:
        width = self.config.width
        return CombinerWeights(
            **self._parts(layer, ("ffn_norm", *FEED_FORWARD, "ffn_post_norm")),
            dense_norm=self._layer_tensor(layer, "post_feedforward_layernorm_1.weight", width),
            expert_norm=self._layer_tensor(layer, "post_feedforward_layernorm_2.weight", width),
            scalar=self._layer_tensor(layer, "layer_scalar", 1),
        )

    def expert(self, layer: int, number: int, part: str) -> Tensor:
        """An expert's `gate` or `up` `[F, C]`, or its `down` `[C, F]`; no other is read."""
        width, f, count = self.config.width, self.mixture.ffn, self.mixture.experts
        name, rows, columns = "experts.down_proj", width, f
        if part != "down":  # In one tensor each expert's gate and up, one after the other.
            name, rows, columns = "experts.gate_up_proj", f, width
            number, count = 2 * number + (part == "up"), 2 * count
        index, full = range(number * rows, (number + 1) * rows), self._names.own_of(layer, name)
        return torch.from_numpy(self._source.rows(full, index, columns, count * rows, self._dtype))

    def banks(self, layer: int, pack: int) -> tuple[Tensor, Tensor, Tensor]:
        """A pack's gates and ups `[E' F, C]` and downs `[C, E' F]`, one expert read at a time."""

        def bank(part: str, axis: int) -> Tensor:
            own = own_experts(self.config, pack)
            return torch.cat([self.expert(layer, number, part) for number in own], axis)

        return bank("gate", 0), bank("up", 0), bank("down", 1)


class AnePack(nn.Module):
    """A pack's share of the experts' sum: `x [1, C, T, 1]` to `y` as `x`, exactly 0 unchosen."""

    root_epsilon: Tensor

    def __init__(
        self,
        config: DecoderConfig,
        w: RouterWeights,
        banks: tuple[Tensor, Tensor, Tensor],
        pack: int,
    ) -> None:
        super().__init__()
        assert config.mixture is not None
        self.activation = config.activation
        # A constant, not a number: the converter divides it in one operation instead of two.
        root_epsilon = torch.tensor([config.epsilon**0.5], dtype=w.norm.dtype)
        self.register_buffer("root_epsilon", root_epsilon)
        self.router = Router(config.mixture, w.projection)
        own = own_experts(config, pack)
        self.own = slice(own.start, own.stop)
        self.scale, self.expert_scale = constant(w.scale), constant(w.expert_scale[self.own])
        self.norm = constant(w.norm)
        self.gate, self.up, self.down = map(pointwise, banks)

    def forward(self, x: Tensor) -> Tensor:
        return self.summed(self.unit(x))

    def unit(self, x: Tensor) -> Tensor:
        return cast_to(scaled_to_unit(x, self.root_epsilon), x.dtype)

    def summed(self, normed: Tensor) -> Tensor:
        """From `x` over its root mean square.

        The weights go on the gates: 0 times a finite gate is 0 however large the other factor,
        and the convolution that leads down sums over the experts.
        """
        h = normed * self.norm
        weights = self.router(normed * self.scale)[:, self.own] * self.expert_scale
        gate = weighted(activated(self.gate(h), self.activation), weights)
        down: Tensor = self.down(gate * self.up(h))
        return down


class AneCombiner(nn.Module):
    """The last pack and the dense network; `x [1, 2C, T, 1]` has the other packs' sum below."""

    def __init__(self, config: DecoderConfig, pack: AnePack, w: CombinerWeights) -> None:
        super().__init__()
        self.width, self.activation = config.width, config.activation
        self.pack = pack
        self.pre_norm = constant(w.ffn_norm)
        self.dense_gate, self.dense_up = projection(w.gate), projection(w.up)
        self.dense_down = projection(w.down)
        self.dense_norm = ScaledRMSNorm(w.dense_norm, config.epsilon)
        self.expert_norm = ScaledRMSNorm(w.expert_norm, config.epsilon)
        self.post_norm = ScaledRMSNorm(w.ffn_post_norm, config.epsilon)
        self.scalar = constant(w.scalar)

    def forward(self, x: Tensor) -> Tensor:
        x, others = x[:, : self.width], x[:, self.width :]
        normed = self.pack.unit(x)
        moe = others + self.pack.summed(normed)
        h = normed * self.pre_norm
        dense = self.dense_down(activated(self.dense_gate(h), self.activation) * self.dense_up(h))
        given: Tensor = self.post_norm(self.dense_norm(dense) + self.expert_norm(moe))
        return (x + given) * self.scalar
