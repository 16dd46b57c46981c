"""Gemma 4's tensors besides those of the decoder core, one shard at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_ane.models.families.decoder import _weights as weights
from pytest_ane.models.families.decoder._config import Mixture
from pytest_ane.models.families.decoder._weights import Linear
from pytest_ane.models.families.gemma4.config import own_experts


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
    gate: Linear
    up: Linear
    down: Linear
    dense_norm: Tensor
    expert_norm: Tensor
    post_norm: Tensor
    scalar: Tensor


class Weights(weights.Weights):
    """A source seen by this family's names; methods read from the source and keep nothing."""

    @property
    def mixture(self) -> Mixture:
        """Experts of a layer."""
        assert self.config.mixture is not None
        return self.config.mixture

    def router(self, layer: int) -> RouterWeights:
        """Router weights of a layer, 1/sqrt(C) multiplied into its scale."""
        width, experts = self.config.width, self.mixture.experts
        return RouterWeights(
            projection=self._layer_tensor(layer, "router.proj.weight", experts, width),
            scale=self._layer_tensor(layer, "router.scale", width) * width**-0.5,
            expert_scale=self._layer_tensor(layer, "router.per_expert_scale", experts),
            norm=self._layer_tensor(layer, "pre_feedforward_layernorm_2.weight", width),
        )

    def combiner(self, layer: int) -> CombinerWeights:
        """One layer's dense network and closing norms."""
        width = self.config.width
        return CombinerWeights(
            pre_norm=self._norm(layer, "ffn_norm"),
            gate=self._linear(layer, "gate"),
            up=self._linear(layer, "up"),
            down=self._linear(layer, "down"),
            dense_norm=self._layer_tensor(layer, "post_feedforward_layernorm_1.weight", width),
            expert_norm=self._layer_tensor(layer, "post_feedforward_layernorm_2.weight", width),
            post_norm=self._norm(layer, "ffn_post_norm"),
            scalar=self.scalar(layer),
        )

    def scalar(self, layer: int) -> Tensor:
        """What a layer's output is multiplied by, `[1]`."""
        return self._layer_tensor(layer, "layer_scalar", 1)

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

    def _layer_tensor(self, layer: int, name: str, *shape: int) -> Tensor:
        return self._read(self._names.own_of(layer, name), *shape)
