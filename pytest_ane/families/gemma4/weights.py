"""Gemma 4's tensors besides those of the decoder core, one shard at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_ane.families.decoder import weights
from pytest_ane.families.decoder.config import Mixture
from pytest_ane.families.decoder.weights import Linear
from pytest_ane.families.gemma4.config import own_experts


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
            projection=self._own(layer, "router.proj.weight", experts, width),
            scale=self._own(layer, "router.scale", width) * width**-0.5,
            expert_scale=self._own(layer, "router.per_expert_scale", experts),
            norm=self._own(layer, "pre_feedforward_layernorm_2.weight", width),
        )

    def combiner(self, layer: int) -> CombinerWeights:
        """One layer's dense network and closing norms."""
        width = self.config.width
        return CombinerWeights(
            pre_norm=self._norm(layer, "ffn_norm"),
            gate=self._linear(layer, "gate"),
            up=self._linear(layer, "up"),
            down=self._linear(layer, "down"),
            dense_norm=self._own(layer, "post_feedforward_layernorm_1.weight", width),
            expert_norm=self._own(layer, "post_feedforward_layernorm_2.weight", width),
            post_norm=self._norm(layer, "ffn_post_norm"),
            scalar=self.scalar(layer),
        )

    def scalar(self, layer: int) -> Tensor:
        """What a layer's output is multiplied by, `[1]`."""
        return self._own(layer, "layer_scalar", 1)

    def gate(self, layer: int, expert: int) -> Tensor:
        """An expert's gate `[F, C]`: the first half of its rows of the fused tensor."""
        f = self.mixture.ffn
        return self._of_bank(layer, "gate_up_proj", 2 * f * expert, f, 2 * f)

    def up(self, layer: int, expert: int) -> Tensor:
        """An expert's up projection `[F, C]`: the second half of its rows."""
        f = self.mixture.ffn
        return self._of_bank(layer, "gate_up_proj", 2 * f * expert + f, f, 2 * f)

    def down(self, layer: int, expert: int) -> Tensor:
        """An expert's down projection `[C, F]`."""
        width = self.config.width
        return self._of_bank(layer, "down_proj", width * expert, width, width)

    def banks(self, layer: int, pack: int) -> tuple[Tensor, Tensor, Tensor]:
        """A pack's gates and ups `[E' F, C]` and downs `[C, E' F]`, one expert read at a time."""
        chosen = own_experts(self.config, pack)

        def stacked(read: Callable[[int, int], Tensor], axis: int) -> Tensor:
            first = read(layer, chosen[0])
            shape = [n * len(chosen) if i == axis else n for i, n in enumerate(first.shape)]
            bank = torch.empty(shape, dtype=first.dtype)
            for place, expert in zip(bank.chunk(len(chosen), axis), chosen, strict=True):
                place.copy_(first if expert == chosen[0] else read(layer, expert))
            return bank

        return stacked(self.gate, 0), stacked(self.up, 0), stacked(self.down, 1)

    def _own(self, layer: int, name: str, *shape: int) -> Tensor:
        return self._read(self._names.own_of(layer, name), *shape)

    def _of_bank(self, layer: int, name: str, first: int, count: int, each: int) -> Tensor:
        """Some of a bank's rows, of which every expert has `each`."""
        rows, height = range(first, first + count), each * self.mixture.experts
        width = self.mixture.ffn if name == "down_proj" else self.config.width
        full = self._names.own_of(layer, f"experts.{name}")
        return torch.from_numpy(self._source.rows(full, rows, width, height, self._dtype))
