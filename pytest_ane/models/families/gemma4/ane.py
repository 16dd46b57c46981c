"""The ANE form of a layer's packs: routing in the graph, a pack's experts side by side.

There is no top-k and no gather, which would leave the ANE (rules R009, R012): every pack compares
all router logits pairwise, and weights its experts with exact zeros where they are not chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ane.models.families._ane import ScaledRMSNorm, cast_to, pointwise, scaled_to_unit
from pytest_ane.models.families.decoder._ane import Router, projection, weighted
from pytest_ane.models.families.decoder._config import DecoderConfig
from pytest_ane.models.families.decoder._reference import activated
from pytest_ane.models.families.gemma4.config import own_experts
from pytest_ane.models.families.gemma4.weights import CombinerWeights, RouterWeights


def constant(values: Tensor) -> nn.Parameter:
    """Values of channels `[C]` as `[1, C, 1, 1]`."""
    return nn.Parameter(values.reshape(1, -1, 1, 1), requires_grad=False)


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
        """The pack's weighted sum of its experts."""
        return self.summed(self.unit(x))

    def unit(self, x: Tensor) -> Tensor:
        """`x` over its root mean square."""
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
    """The last pack: its own experts, the dense network and the end of the layer.

    `x [1, 2C, T, 1]` holds the residual stream and below it the sum of the other packs.
    """

    def __init__(self, config: DecoderConfig, pack: AnePack, w: CombinerWeights) -> None:
        super().__init__()
        self.width, self.activation = config.width, config.activation
        self.pack = pack
        self.pre_norm = constant(w.pre_norm)
        self.dense_gate, self.dense_up = projection(w.gate), projection(w.up)
        self.dense_down = projection(w.down)
        self.dense_norm = ScaledRMSNorm(w.dense_norm, config.epsilon)
        self.expert_norm = ScaledRMSNorm(w.expert_norm, config.epsilon)
        self.post_norm = ScaledRMSNorm(w.post_norm, config.epsilon)
        self.scalar = constant(w.scalar)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output `[1, C, T, 1]`."""
        x, others = x[:, : self.width], x[:, self.width :]
        normed = self.pack.unit(x)
        moe = others + self.pack.summed(normed)
        h = normed * self.pre_norm
        dense = self.dense_down(activated(self.dense_gate(h), self.activation) * self.dense_up(h))
        given: Tensor = self.post_norm(self.dense_norm(dense) + self.expert_norm(moe))
        return (x + given) * self.scalar
