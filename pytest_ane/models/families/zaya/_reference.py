"""ZAYA1's tensors in fp16 or float32, a shard at a time, and its float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Routes
from pytest_ane.models.families._layout import causal_mask
from pytest_ane.models.families._reference import CLOSE, attend, split_heads
from pytest_ane.models.families.decoder._reference import Linear, Weights, linear, normed, turned
from pytest_ane.models.families.zaya._config import ZayaConfig, ZayaNames, is_attention

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
    norm: Tensor
    router: RouterWeights
    residual: Residual


class ZayaWeights(Weights):
    """A source seen by its names; `dtype` is fp16 for what is converted."""

    config: ZayaConfig
    _names: ZayaNames

    def embedding(self, ids: Sequence[int]) -> FloatArray:
        rows = super().embedding(ids)
        if not self.config.is_published:
            return rows
        scale, bias = self._scales(0, "hidden_states")
        scaled: FloatArray = (rows + bias.numpy()) * scale.numpy()
        return scaled

    def block(self, index: int) -> Any:
        return self.cca(index) if is_attention(index) else self.mixture(index)

    def cca(self, index: int) -> AttentionWeights:
        """A layer of compressed convolutional attention.

        The notes' form leaves out convolutions that overflow fp16.
        """
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
        rows, columns = self._shapes[layer]
        name, total = self._names.expert(index, number, layer), rows
        if self._names.folded:
            assert self.config.mixture is not None
            band = range(number * rows + band.start, number * rows + band.stop)
            total *= self.config.mixture.experts
        return torch.from_numpy(self._source.rows(name, band, columns, total, self._dtype))

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


def mixture(x: Tensor, w: MixtureWeights, c: ZayaConfig, index: int, source: ZayaWeights) -> Tensor:
    """A mixture of experts on `[T, C]`, whose experts are read some rows at a time.

    The router's state is below the hidden states where it is carried, in and out.
    """
    h, shares, state = routed(x, w, c)
    mixed = torch.zeros_like(h)
    for number in range(shares.shape[1] - 1):
        rows = shares[:, number].nonzero()[:, 0]
        if len(rows):
            gate, up = source.project(h[rows], index, number, "linear_fc1").chunk(2, dim=1)
            given = source.project(F.silu(gate) * up, index, number, "linear_fc2")
            mixed[rows] += shares[rows, number, None] * given
    return torch.cat([merge(x[:, : c.width], mixed, w.residual), state], dim=1)


def path(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> Tensor:
    """What the residual path alone gives of a mixture's `[T, C]`.

    The router's state is all path, for it adds nothing to the residual stream: what is left of an
    output is what the experts add.
    """
    _, _, state = routed(x, w, c)
    return torch.cat([carried(x[:, : c.width], w.residual), state], dim=1)


def routes(x: Tensor, w: MixtureWeights, c: ZayaConfig, _index: int) -> Routes:
    """Experts that count at each position, the one of the largest share first.

    In the published model the chosen one, unless none is. In the notes' form all run, and those
    count that have more than an even share of all slots.
    """
    _, shares, _ = routed(x, w, c)
    least = 0.0 if c.is_published else 1 / shares.shape[1]
    ordered = shares[:, :-1].sort(dim=1, descending=True, stable=True)
    counts = (ordered.values > least).sum(dim=1)
    rows = zip(ordered.indices.tolist(), counts.tolist(), strict=True)
    return tuple(tuple(row[:count]) for row, count in rows)


def undecided(x: Tensor, w: MixtureWeights, c: ZayaConfig, _index: int) -> tuple[int, ...]:
    """Rows at which rounding to fp16 decides which slot is chosen.

    As `close_choices` has it, products of the router's layers are off by up to 2^-11 of themselves,
    independently; of each layer's error the lead of the best slot has its derivative's part.
    """
    with torch.inference_mode(False), torch.enable_grad():
        layers = _router(x.clone().requires_grad_(), w, c)
        best = _votes(layers[-1].given, w.router).topk(2, dim=1).values
        lead = best[:, 0] - best[:, 1]
        slopes = torch.autograd.grad(lead.sum(), [layer.given for layer in layers])
    variance = best.square().sum(dim=1)
    for slope, layer in zip(slopes, layers, strict=True):
        noise = layer.entered.square() @ layer.weight.square().T
        variance = variance + (slope.square() * noise).sum(dim=1)
    return tuple((lead <= CLOSE * variance.sqrt()).nonzero()[:, 0].tolist())


def routed(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Normed states `[T, C]`, shares `[T, experts + 1]`, and the router's state for the next one.

    The last slot stands for no expert. The notes' form has shares of all, and no state.
    """
    if not c.is_published:
        h, router = normed(x, w.norm, c), w.router
        inner = normed(F.silu(linear(h, router.down)), router.norm, c)
        for layer in (router.first, router.second):
            inner = F.silu(linear(inner, layer))
        logits = F.linear(inner, router.last, router.balancing)
        return h, torch.softmax(logits, dim=1), x[:, :0]
    down, *_, last = _router(x, w, c)
    chosen = _votes(last.given, w.router).argmax(dim=1, keepdim=True)
    shares = torch.softmax(last.given, dim=1)
    only = torch.zeros_like(shares).scatter(1, chosen, shares.gather(1, chosen))
    return down.entered, only, down.given


class _Layer(NamedTuple):
    """One of the published router's: what enters it `[T, in]`, its weight, and what it gives."""

    entered: Tensor
    weight: Tensor
    given: Tensor


def _router(x: Tensor, w: MixtureWeights, c: ZayaConfig) -> list[_Layer]:
    """The published router's layers at hidden states `[T, C]`, its state below them."""
    inner, before = normed(x[:, : c.width], w.norm, c), x[:, c.width :]
    router, made = w.router, list[_Layer]()
    for layer in (router.down, router.first, router.second, Linear(router.last)):
        given = linear(inner, layer)
        if not made and router.carry is not None:
            given = given + before * router.carry
        made.append(_Layer(inner, layer.weight, given))
        inner = F.gelu(given) if len(made) > 1 else normed(given, router.norm, c)
    return made


def _votes(slots: Tensor, w: RouterWeights) -> Tensor:
    return torch.softmax(slots, dim=1) + w.balancing


def attention(x: Tensor, w: AttentionWeights, c: ZayaConfig, index: int) -> Tensor:
    """Compressed convolutional attention on `[T, C]` (Zyphra, arXiv 2510.04476)."""
    projected = normed(x, w.norm, c) @ w.qkv.T
    half = c.kv_channels // 2
    qk, delayed, current = torch.split(projected, [c.qk_channels, half, half], dim=1)
    v = torch.cat([current, F.pad(delayed[:-1], (0, 0, 1, 0))], dim=1)
    q, k = (unit(part) for part in mean_and_convolution(qk, w, c))
    k = k * w.temperature[:, None, None]
    q, k = (turned(part, None, c, index) for part in (q, k))
    mask = torch.from_numpy(causal_mask(len(x), window=c.layers[index].window))
    mixed = attend(q, k, split_heads(v, c.head), mask, c.head**0.5)
    return merge(x, mixed @ w.o.T, w.residual)


def mean_and_convolution(qk: Tensor, w: AttentionWeights, c: ZayaConfig) -> tuple[Tensor, Tensor]:
    """Queries `[heads, T, d]` and keys `[kv_heads, T, d]` before they are scaled to unit size.

    A query is its mean with its group's key, a key its mean with its group's average query; to
    both the convolutions over this and the two positions before are added.
    """
    length = len(qk)
    q, k = torch.split(qk, [c.q_channels, c.kv_channels], dim=1)
    q = q.reshape(length, c.kv_heads, -1, c.head)
    mean = (q + k.reshape(length, c.kv_heads, 1, c.head)) / 2
    q, k = mean.reshape(length, -1), mean.mean(dim=2).reshape(length, -1)
    if w.convolutions is not None:
        depthwise, grouped = w.convolutions
        once = F.conv1d(F.pad(qk.T, (2, 0)), *depthwise, groups=c.qk_channels)
        twice = F.conv1d(once, *grouped, groups=c.heads + c.kv_heads).T
        q, k = q + twice[:, : c.q_channels], k + twice[:, c.q_channels :]
    return split_heads(q, c.head), split_heads(k, c.head)


def unit(x: Tensor) -> Tensor:
    """Scaled to a mean square of 1 along the last axis, as length sqrt(d)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    shortest: float = torch.finfo(x.dtype).eps
    scaled: Tensor = x * (x.shape[-1] ** 0.5 / length.clamp_min(shortest))
    return scaled


def merge(x: Tensor, update: Tensor, w: Residual) -> Tensor:
    return carried(x, w) + update * w.scale + w.bias


def carried(x: Tensor, w: Residual) -> Tensor:
    return x * w.residual_scale + w.residual_bias
