"""ZAYA1's tensors in fp16 or float32, a shard at a time, and the ANE forms of its layers.

torch's tracer names operations after the local variables that hold their results: another name
gives a package of other bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.families import Routes
from pytest_ane.models.families._ane import (
    Chosen,
    ScaledRMSNorm,
    cast_to,
    constant,
    convolution,
    pointwise,
    rotate,
    scaled_to_unit,
)
from pytest_ane.models.families.decoder._forms import Linear, Weights
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


class AneResidual(nn.Module):
    def __init__(self, weights: Residual) -> None:
        super().__init__()
        self.residual_scale = constant(weights.residual_scale)
        self.residual_bias = constant(weights.residual_bias)
        self.scale, self.bias = constant(weights.scale), constant(weights.bias)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        return x * self.residual_scale + self.residual_bias + given * self.scale + self.bias


class AneRouter(nn.Module):
    """The notes' soft routing: the weights `[1, experts + 1, T, 1]` of all experts and of none."""

    def __init__(self, config: ZayaConfig, weights: RouterWeights) -> None:
        super().__init__()
        self.down_proj = pointwise(*weights.down)
        self.norm = ScaledRMSNorm(weights.norm, config.epsilon)
        self.first, self.second = pointwise(*weights.first), pointwise(*weights.second)
        self.last = pointwise(weights.last)
        self.balancing = constant(weights.balancing)

    def forward(self, h: Tensor) -> Tensor:
        inner = self.norm(F.silu(self.down_proj(h)))
        inner = F.silu(self.second(F.silu(self.first(inner))))
        return torch.softmax(self.last(inner) + self.balancing, dim=1)


class PublishedRouter(AneRouter):
    """Routing to one expert, or none: the weights of all, but for one exactly 0."""

    carry: Tensor | None
    zero: Tensor

    def __init__(self, config: ZayaConfig, weights: RouterWeights) -> None:
        super().__init__(config, weights)
        dtype = weights.last.dtype
        self.chosen = Chosen(len(weights.last), 1, dtype)
        self.register_buffer("zero", torch.zeros(1, dtype=dtype))
        self.carry = None if weights.carry is None else constant(weights.carry)

    def state(self, h: Tensor, before: Tensor) -> Tensor:
        """What the next mixture's router goes on from, `[1, R, T, 1]`, of normed states."""
        own: Tensor = self.down_proj(h)
        return own if self.carry is None else own + before * self.carry

    def forward(self, state: Tensor) -> Tensor:
        inner = F.gelu(self.second(F.gelu(self.first(self.norm(state)))))
        shares = torch.softmax(self.last(inner), dim=1)
        return torch.where(self.chosen(shares + self.balancing), shares, self.zero)


class AneExpert(nn.Module):
    """SwiGLU with both halves in one convolution."""

    def __init__(self, fc1: Tensor, fc2: Tensor) -> None:
        super().__init__()
        self.fc1, self.fc2 = pointwise(fc1), pointwise(fc2)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = self.fc1(h).chunk(2, dim=1)
        given: Tensor = self.fc2(F.silu(gate) * up)
        return given


def routes(x: FloatArray, w: MixtureWeights, config: ZayaConfig) -> Routes:
    """The notes' experts of more than an even share at each of `x [T, C]`, the largest first."""
    with torch.inference_mode():
        h = ScaledRMSNorm(w.norm, config.epsilon)(torch.from_numpy(x.T)[None, :, :, None])
        shares = AneRouter(config, w.router)(h)[0, :, :, 0].T
    ordered = shares[:, :-1].sort(dim=1, descending=True, stable=True)
    counts = (ordered.values > 1 / shares.shape[1]).sum(dim=1)
    rows = zip(ordered.indices.tolist(), counts.tolist(), strict=True)
    return tuple(tuple(row[:count]) for row, count in rows)


class AneMixture(nn.Module):
    """All experts run and are weighted, so that no branch depends on data."""

    def __init__(self, config: ZayaConfig, index: int, weights: ZayaWeights) -> None:
        super().__init__()
        w = weights.mixture(index)
        assert config.mixture is not None
        self.norm = ScaledRMSNorm(w.norm, config.epsilon)
        self.router = (PublishedRouter if config.is_published else AneRouter)(config, w.router)
        self.experts = nn.ModuleList(
            AneExpert(*weights.expert(index, n)) for n in range(config.mixture.experts)
        )
        self.merge = AneResidual(w.residual)

    def forward(self, x: Tensor) -> Tensor:
        """`[1, C, T, 1]` to the same; the weight of the last slot, no expert, is dropped."""
        h = self.norm(x)
        return self.mixed(x, h, self.router(h))

    def mixed(self, x: Tensor, h: Tensor, chosen: Tensor) -> Tensor:
        """States, normed states, and what each expert counts for, to the states after the layer."""
        weighted = [expert(h) * chosen[:, n : n + 1] for n, expert in enumerate(self.experts)]
        mixed = weighted[0]
        for part in weighted[1:]:
            mixed = mixed + part
        joined: Tensor = self.merge(x, mixed)
        return joined


class PublishedMixture(AneMixture):
    """The router's state enters, of all mixtures but the first, and leaves below the states."""

    router: PublishedRouter

    def __init__(self, config: ZayaConfig, index: int, weights: ZayaWeights) -> None:
        super().__init__(config, index, weights)
        self.width, self.carries = config.width, config.enters(index) > 0

    def forward(self, x: Tensor) -> Tensor:
        """`[1, C, T, 1]` or `[1, C + R, T, 1]` to `[1, C + R, T, 1]`."""
        x, before = (x[:, : self.width], x[:, self.width :]) if self.carries else (x, x)
        h = self.norm(x)
        state = self.router.state(h, before)
        return torch.cat([self.mixed(x, h, self.router(state)), state], dim=1)


class AneAttention(nn.Module):
    """Compressed convolutional attention with states.

    `x [1, C, T, 1]`, `cos`/`sin [1, 1, rotary, T]`, `mask` and `write [1, 1, T, S]` to `y` as `x`.
    States: `kv_cache [2 KV, 1, S, d]`, keys before values; and `tail [1, 1, 2, *]`, what the two
    last positions leave to the next ones: queries, keys and delayed values before all else. They
    are two and wide, because three, or narrow ones, fail on devices (rules R057, R058). New rows
    are put in place by a product with the one-hot `write`: scattering is not for the ANE (R002).
    """

    kv_cache: Tensor
    tail: Tensor

    def __init__(self, config: ZayaConfig, index: int, weights: AttentionWeights) -> None:
        super().__init__()
        self.config = config
        self.norm = ScaledRMSNorm(weights.norm, config.epsilon)
        self.qkv_proj, self.o_proj = pointwise(weights.qkv), pointwise(weights.o)
        self.temperature = nn.Parameter(
            weights.temperature.reshape(-1, 1, 1, 1), requires_grad=False
        )
        groups = (config.qk_channels, config.heads + config.kv_heads)
        self.convolutions = nn.ModuleList(
            convolution(weight[..., None], bias, count)
            for (weight, bias), count in zip(weights.convolutions or (), groups, strict=False)
        )
        self.merge = AneResidual(weights.residual)
        for name, shape in config.state_shapes(index).items():
            self.register_buffer(name, torch.zeros(shape, dtype=weights.qkv.dtype))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, write: Tensor) -> Tensor:
        c = self.config
        seen, current = self.projected(x)
        q, k = self.queries_and_keys(seen[:, : c.qk_channels])
        v = torch.cat([current, seen[:, c.qk_channels :, 1:-1]], dim=1)
        q = rotate(scaled_to_unit(q, fp16.MIN_NORMAL, dim=2) * c.head**-0.5, cos, sin)
        k = rotate(scaled_to_unit(k, fp16.MIN_NORMAL, dim=2) * self.temperature, cos, sin)
        v = v.reshape(c.kv_heads, 1, c.head, -1)
        keys, values = self.remembered(torch.cat([k, v]).transpose(2, 3), write)
        weights = torch.softmax(q.transpose(2, 3) @ keys.transpose(2, 3) + mask, dim=-1)
        mixed = (weights @ values).transpose(2, 3).reshape(1, c.q_channels, -1, 1)
        joined: Tensor = self.merge(x, self.o_proj(cast_to(mixed, x.dtype)))
        return joined

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and delayed values of two positions before and all new ones; values."""
        c = self.config
        mine, current = torch.split(
            self.qkv_proj(self.norm(x)), [c.tail_channels, c.kv_channels // 2], dim=1
        )
        before = cast_to(self.tail, x.dtype).permute(0, 3, 2, 1)
        seen = torch.cat([before, mine], dim=2)
        self.tail[:] = seen[:, :, -2:].permute(0, 3, 2, 1)
        return seen, current

    def queries_and_keys(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """`[KV, G, d, T]` and `[KV, 1, d, T]`: means of the two, and the convolutions of both."""
        q, k = self.by_keys(seen[:, :, 2:])
        mean_q = (q + k) * 0.5
        mean_k = mean_q.mean(dim=1, keepdim=True)
        if not self.convolutions:
            return mean_q, mean_k
        depthwise, grouped = self.convolutions
        q, k = self.by_keys(grouped(depthwise(seen)))
        return q + mean_q, k + mean_k

    def by_keys(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """`[1, (H + KV) d, T, 1]` as queries by the keys they share, and keys."""
        c = self.config
        q, k = torch.split(qk, [c.q_channels, c.kv_channels], dim=1)
        groups = c.heads // c.kv_heads
        return q.reshape(c.kv_heads, groups, c.head, -1), k.reshape(c.kv_heads, 1, c.head, -1)

    def remembered(self, new: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows `[2 KV, 1, T, d]` into the cache; all keys and values, `[KV, 1, S, d]` each."""
        place = write.transpose(2, 3)
        kept = 1 - place.sum(dim=3, keepdim=True)
        cache = cast_to(self.kv_cache, new.dtype) * kept + place @ new
        self.kv_cache[:] = cache
        keys, values = cache.chunk(2, dim=0)
        return keys, values
