"""The ANE form of a layer's packs: routing in the graph, a pack's experts side by side.

There is no top-k and no gather, which would leave the ANE (rules R009, R012): every pack compares
all router logits pairwise, and weights its experts with exact zeros where they are not chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.families.ane import Chosen, pointwise
from pytest_ane.families.gemma4.ane import AneNorm, AneUnit, constant
from pytest_ane.families.gemma4.config import Gemma4Config
from pytest_ane.families.gemma4.weights import CombinerWeights, RouterWeights, Weights
from pytest_ane.families.layout import MASKED


class AneRouter(nn.Module):
    """Routing weights `[1, E', T, 1]` of the experts of one pack.

    Packs agree on ties. The softmax over the chosen alone is the published one renormalised.
    """

    masked: Tensor

    def __init__(self, config: Gemma4Config, w: RouterWeights, pack: int) -> None:
        super().__init__()
        self.router = pointwise(w.projection)
        self.scale = constant(w.scale)
        self.own = slice(pack * config.pack, (pack + 1) * config.pack)
        self.expert_scale = constant(w.expert_scale[self.own])
        self.chosen = Chosen(config.experts, config.top, w.scale.dtype)
        self.register_buffer("masked", torch.tensor([MASKED], dtype=w.scale.dtype))

    def forward(self, normed: Tensor) -> Tensor:
        """From `x` over its root mean square, `[1, C, T, 1]`."""
        logits = self.router(normed * self.scale)
        chosen = torch.where(self.chosen(logits), logits, self.masked)
        shares = torch.softmax(chosen, dim=1)[:, self.own]
        return shares * self.expert_scale


class AnePack(nn.Module):
    """A pack's share of the experts' sum: `x [1, C, T, 1]` to `y` as `x`, exactly 0 unchosen."""

    def __init__(
        self,
        config: Gemma4Config,
        w: RouterWeights,
        banks: tuple[Tensor, Tensor, Tensor],
        pack: int,
    ) -> None:
        super().__init__()
        self.experts = config.pack
        self.unit = AneUnit(config.epsilon, w.norm.dtype)
        self.routing = AneRouter(config, w, pack)
        self.norm = constant(w.norm)
        self.gate, self.up, self.down = map(pointwise, banks)

    def forward(self, x: Tensor) -> Tensor:
        """The pack's weighted sum of its experts."""
        return self.summed(self.unit(x))

    def summed(self, normed: Tensor) -> Tensor:
        """From `x` over its root mean square.

        The weights go on the gates: 0 times a finite gate is 0 however large the other factor,
        and the convolution that leads down sums over the experts.
        """
        h = normed * self.norm
        weights = self.routing(normed).reshape(1, self.experts, 1, -1)
        gate = F.gelu(self.gate(h), approximate="tanh")
        gate = gate.reshape(1, self.experts, gate.shape[1] // self.experts, -1) * weights
        down: Tensor = self.down(gate.reshape(1, self.gate.out_channels, -1, 1) * self.up(h))
        return down


class AneCombiner(nn.Module):
    """The last pack: its own experts, the dense network and the end of the layer.

    `x [1, 2C, T, 1]` holds the residual stream and below it the sum of the other packs.
    """

    def __init__(self, config: Gemma4Config, pack: AnePack, w: CombinerWeights) -> None:
        super().__init__()
        self.width = config.width
        self.pack = pack
        self.pre_norm = constant(w.pre_norm)
        self.dense_gate, self.dense_up = pointwise(w.gate), pointwise(w.up)
        self.dense_down = pointwise(w.down)
        self.dense_norm = AneNorm(w.dense_norm, config.epsilon)
        self.expert_norm = AneNorm(w.expert_norm, config.epsilon)
        self.post_norm = AneNorm(w.post_norm, config.epsilon)
        self.scalar = constant(w.scalar)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output `[1, C, T, 1]`."""
        x, others = x[:, : self.width], x[:, self.width :]
        normed = self.pack.unit(x)
        moe = others + self.pack.summed(normed)
        h = normed * self.pre_norm
        dense = self.dense_down(F.gelu(self.dense_gate(h), approximate="tanh") * self.dense_up(h))
        given: Tensor = self.post_norm(self.dense_norm(dense) + self.expert_norm(moe))
        return (x + given) * self.scalar


def read_banks(weights: Weights, layer: int, pack: int) -> tuple[Tensor, Tensor, Tensor]:
    """A pack's gates and ups `[E' F, C]` and downs `[C, E' F]`, one expert read at a time."""
    c = weights.config
    chosen = range(pack * c.pack, (pack + 1) * c.pack)

    def stacked(read: Callable[[int, int], Tensor], axis: int) -> Tensor:
        first = read(layer, chosen[0])
        shape = [n * c.pack if i == axis else n for i, n in enumerate(first.shape)]
        bank = torch.empty(shape, dtype=first.dtype)
        for place, expert in zip(bank.chunk(c.pack, axis), chosen, strict=True):
            place.copy_(first if expert == chosen[0] else read(layer, expert))
        return bank

    return stacked(weights.gate, 0), stacked(weights.up, 0), stacked(weights.down, 1)
