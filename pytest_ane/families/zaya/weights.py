"""ZAYA1 tensors from a source, one shard at a time, in fp16 or float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.decoder.weights import Linear, Weights
from pytest_ane.families.zaya.config import ZayaConfig
from pytest_ane.families.zaya.names import ZayaNames

OVERFLOW_BIAS = 5.0
"""Where the first convolution has a bias beyond it, the lab's shards leave the convolutions out
(L00, L76 and L78 of ZAYA1-8B)."""

_BAND = 512
"""Rows of an expert at a time: 4 MB in float32."""


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
    """The router's three hidden layers, norm, last layer, biases, and its state's scale.

    Attributes:
        carry: factor of the state that the mixture before gives, `[R]`; None where none enters.
    """

    down: Linear
    norm: Tensor
    first: Linear
    second: Linear
    last: Tensor
    balancing: Tensor
    carry: Tensor | None


@dataclass(frozen=True)
class MixtureWeights:
    """One mixture's tensors without its experts, which are read one at a time."""

    norm: Tensor
    router: RouterWeights
    residual: Residual


class ZayaWeights(Weights):
    """A source seen by its names; `dtype` is fp16 for what is converted."""

    config: ZayaConfig
    _names: ZayaNames

    def embedded(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states that enter the first layer, scaled in the published model."""
        rows = self.embedding(ids)
        if not self.config.is_published:
            return rows
        scale, bias = (
            self._scale(0, f"hidden_states_{name}").numpy() for name in ("scale", "bias")
        )
        scaled: FloatArray = (rows + bias) * scale
        return scaled

    def cca(self, index: int) -> AttentionWeights:
        """A layer of compressed convolutional attention.

        The notes' form leaves out convolutions that overflow fp16.
        """
        c, own = self.config, "self_attn.qkv."
        half, total = c.kv_channels // 2, c.qk_channels
        parts = {"linear_q": c.q_channels, "linear_k": c.kv_channels}
        parts |= {"val_proj2": half, "val_proj1": half}
        qkv = [self._layer(index, f"{own}{n}.weight", rows, c.width) for n, rows in parts.items()]
        bias = self._layer(index, f"{own}conv_qk.0.bias", total)
        convolutions = None
        if c.is_published or bias.abs().max() <= OVERFLOW_BIAS:
            depthwise = self._layer(index, f"{own}conv_qk.0.weight", total, 1, 2)
            grouped = self._layer(index, f"{own}conv_qk.1.weight", total, c.head, 2)
            other = self._layer(index, f"{own}conv_qk.1.bias", total)
            convolutions = Linear(depthwise, bias), Linear(grouped, other)
        return AttentionWeights(
            norm=self._layer(index, "input_norm.weight", c.width),
            qkv=torch.cat(qkv),
            convolutions=convolutions,
            temperature=self._layer(index, f"{own}temp", c.kv_heads),
            o=self._layer(index, "self_attn.o_proj.weight", c.width, c.q_channels),
            residual=self.residual(index),
        )

    def mixture(self, index: int) -> MixtureWeights:
        """A mixture of experts, without the experts."""
        c, own = self.config, "zaya_block.router."

        def linear(name: str, columns: int) -> Linear:
            weight = self._layer(index, f"{own}{name}.weight", c.router, columns)
            return Linear(weight, self._layer(index, f"{own}{name}.bias", c.router))

        assert c.mixture is not None
        slots, states = c.mixture.experts + 1, c.enters(index)
        router = RouterWeights(
            down=linear("down_proj", c.width),
            norm=self._layer(index, f"{own}rmsnorm_eda.weight", c.router),
            first=linear("router_mlp.0", c.router),
            second=linear("router_mlp.2", c.router),
            last=self._layer(index, f"{own}router_mlp.4.weight", slots, c.router),
            balancing=self._layer(index, f"{own}balancing_biases", slots),
            carry=self._layer(index, f"{own}router_states_scale", states) if states else None,
        )
        norm = self._layer(index, "input_norm.weight", c.width)
        return MixtureWeights(norm, router, self.residual(index))

    def residual(self, index: int) -> Residual:
        """How a layer's output joins the residual stream.

        In the notes' form by the scales before the layer. In the published model these act on what
        the layers before it give: a layer's output has those before the next one, which add their
        biases before they scale.
        """
        at = index + self.config.is_published
        scale, bias = (self._scale(at, f"hidden_states_{name}") for name in ("scale", "bias"))
        # The published first layer scales no residual: it has no tensors for it.
        names = self._source.names
        if at == 0 and names and self._names.before(0, "residual_scale") not in names:
            return Residual(scale, bias, torch.ones_like(scale), torch.zeros_like(bias))
        kept, added = (self._scale(at, f"residual_{name}") for name in ("scale", "bias"))
        if self.config.is_published:
            return Residual(scale, bias * scale, kept, added * kept)
        return Residual(scale, bias, kept, added)

    def expert(self, index: int, number: int) -> tuple[Tensor, Tensor]:
        """An expert's projections, `[2 F, C]` and `[C, F]`."""
        fc1, fc2 = (
            self._expert(index, number, name, range(rows))
            for name, (rows, _) in self._shapes.items()
        )
        return fc1, fc2

    def project(self, x: Tensor, index: int, number: int, layer: str) -> Tensor:
        """`x W^T [T, O]` for an expert's `linear_fc1` or `linear_fc2`, never held as a whole.

        A band of rows fits the processor's cache, where it is widened and multiplied at once.
        """
        rows = self._shapes[layer][0]
        products = torch.empty(rows, len(x))
        for first in range(0, rows, _BAND):
            band = range(first, min(first + _BAND, rows))
            weight = self._expert(index, number, layer, band)
            torch.mm(weight, x.T, out=products[first : band.stop])
        return products.T

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        c = self.config
        return {"linear_fc1": (2 * c.ffn, c.width), "linear_fc2": (c.width, c.ffn)}

    def _expert(self, index: int, number: int, layer: str, band: range) -> Tensor:
        """Rows of an expert's projection, which may be one of all experts in a tensor."""
        rows, columns = self._shapes[layer]
        name, whole = self._names.experts(index, number, layer)
        if whole:
            assert self.config.mixture is not None
            band = range(number * rows + band.start, number * rows + band.stop)
            rows *= self.config.mixture.experts
        return torch.from_numpy(self._source.rows(name, band, columns, rows, self._dtype))

    def _scale(self, index: int, name: str) -> Tensor:
        return self._read(self._names.before(index, name), self.config.width)

    def _layer(self, index: int, name: str, *shape: int) -> Tensor:
        return self._read(self._names.of_layer(index, name), *shape)
