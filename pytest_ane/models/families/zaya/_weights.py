"""ZAYA1's tensors in fp16 or float32, a shard at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families.decoder._weights import Linear, Weights
from pytest_ane.models.families.zaya import ZayaConfig, ZayaNames

OVERFLOW_BIAS = 5.0
"""Where the first convolution has a bias beyond it, the lab's shards leave the convolutions out
(L00, L76 and L78 of ZAYA1-8B)."""


class Residual(NamedTuple):
    """y = x * residual_scale + residual_bias + f(x) * scale + bias, all `[C]`."""

    scale: Tensor
    bias: Tensor
    residual_scale: Tensor
    residual_bias: Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """One attention layer's tensors, projections as `[out, in]`.

    Attributes:
        qkv: queries, keys, values for the next position, values for this one, stacked.
        convolutions: the depthwise and the grouped one; None where left out.
        temperature: `[kv_heads]`, a factor of the keys.
    """

    norm: Tensor
    qkv: Tensor
    convolutions: tuple[Linear, Linear] | None
    temperature: Tensor
    o: Tensor
    residual: Residual


@dataclass(frozen=True)
class RouterWeights:
    """A router's tensors; `carry [R]` is of the state before it, None where none enters."""

    down: Linear
    norm: Tensor
    first: Linear
    second: Linear
    last: Tensor
    balancing: Tensor
    carry: Tensor | None


@dataclass(frozen=True)
class MixtureWeights:
    norm: Tensor
    router: RouterWeights
    residual: Residual


class ZayaWeights(Weights):
    config: ZayaConfig
    _names: ZayaNames

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        rows = super().embedding(ids)
        if not self.config.is_published:
            return rows
        scale, bias = self._scales(0, "hidden_states")
        scaled: FloatArray = (rows + bias.numpy()) * scale.numpy()
        return scaled

    def cca(self, index: int) -> AttentionWeights:
        """One attention; the notes' form leaves out convolutions that overflow fp16."""
        c, own = self.config, "self_attn.qkv."
        half, total = c.kv_channels // 2, c.qk_channels
        parts = ("linear_q", c.q_channels), ("linear_k", c.kv_channels)
        values = ("val_proj2", half), ("val_proj1", half)
        qkv = [
            self._layer_tensor(index, f"{own}{n}.weight", rows, c.width)
            for n, rows in parts + values
        ]
        depthwise = self._biased(index, f"{own}conv_qk.0", total, 1, 2)
        grouped = self._biased(index, f"{own}conv_qk.1", total, c.head, 2)
        assert depthwise.bias is not None
        convolved = c.is_published or depthwise.bias.abs().max() <= OVERFLOW_BIAS
        return AttentionWeights(
            norm=self._norm(index, "attention_norm"),
            qkv=torch.cat(qkv),
            convolutions=(depthwise, grouped) if convolved else None,
            temperature=self._layer_tensor(index, f"{own}temp", c.kv_heads),
            o=self._layer_tensor(index, "self_attn.o_proj.weight", c.width, c.q_channels),
            residual=self.residual(index),
        )

    def mixture(self, index: int) -> MixtureWeights:
        c, own = self.config, "zaya_block.router."
        assert c.mixture is not None
        slots, states = c.mixture.experts + 1, c.enters(index)
        router = RouterWeights(
            down=self._biased(index, f"{own}down_proj", c.router, c.width),
            norm=self._layer_tensor(index, f"{own}rmsnorm_eda.weight", c.router),
            first=self._biased(index, f"{own}router_mlp.0", c.router, c.router),
            second=self._biased(index, f"{own}router_mlp.2", c.router, c.router),
            last=self._layer_tensor(index, f"{own}router_mlp.4.weight", slots, c.router),
            balancing=self._layer_tensor(index, f"{own}balancing_biases", slots),
            carry=self._layer_tensor(index, f"{own}router_states_scale", states)
            if states
            else None,
        )
        return MixtureWeights(self._norm(index, "ffn_norm"), router, self.residual(index))

    def residual(self, index: int) -> Residual:
        """How a layer's output joins the residual stream.

        In the notes' form by the scales before the layer. In the published model these act on what
        the layers before it give: a layer's output has those before the next one, which add their
        biases before they scale.
        """
        at, names = index + self.config.is_published, self._source.names
        scale, bias = self._scales(at, "hidden_states")
        # The published first layer scales no residual: it has no tensors for it.
        if at == 0 and names and self._names.before(0, "residual_scale") not in names:
            return Residual(scale, bias, torch.ones_like(scale), torch.zeros_like(bias))
        kept, added = self._scales(at, "residual")
        if self.config.is_published:
            bias, added = bias * scale, added * kept
        return Residual(scale, bias, kept, added)

    def expert(self, index: int, number: int) -> tuple[Tensor, Tensor]:
        """Gate and up `[2 F, C]`, and down `[C, F]`."""
        c = self.config
        return (
            self._expert(index, number, "linear_fc1", 2 * c.ffn, c.width),
            self._expert(index, number, "linear_fc2", c.width, c.ffn),
        )

    def _expert(self, index: int, number: int, layer: str, rows: int, columns: int) -> Tensor:
        name = self._names.expert(index, number, layer)
        if not self._names.folded:
            return self._read(name, rows, columns)
        assert self.config.mixture is not None
        own, total = range(number * rows, (number + 1) * rows), rows * self.config.mixture.experts
        return torch.from_numpy(self._source.rows(name, own, columns, total, self._dtype))

    def _scales(self, index: int, of: str) -> tuple[Tensor, Tensor]:
        """The scale and the bias, `[C]`, of `hidden_states` or of the `residual` before a layer."""
        c, end = self.config, index == len(self.config.layers)
        scale, bias = (
            self._read(self._names.before(index, f"{of}_{name}", end=end), c.width)
            for name in ("scale", "bias")
        )
        return scale, bias

    def _biased(self, index: int, name: str, *shape: int) -> Linear:
        weight = self._layer_tensor(index, f"{name}.weight", *shape)
        return Linear(weight, self._layer_tensor(index, f"{name}.bias", shape[0]))
