"""ZAYA1 tensors from a source, one shard at a time, in fp16 or float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.blocks import slice_bounds
from pytest_ane.families.zaya.config import EMBEDDING, FINAL_NORM, OUTPUT, ZayaConfig, prefix
from pytest_ane.sources import Source

OVERFLOW_BIAS = 5.0
"""Where the first convolution has a bias beyond it, the convolutions overflow fp16: the lab's
shards leave them out in such layers (L00, L76 and L78 of ZAYA1-8B)."""

_BAND = 512
"""Rows of an expert at a time: 4 MB in float32."""

_ROWS = 8192
"""Vocabulary rows at a time: 67 MB in float32."""


@dataclass(frozen=True)
class Residual:
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
        convolutions: weight and bias of the depthwise and the grouped one; None where left out.
        temperature: `[kv_heads]`, a factor of the keys.
    """

    norm: Tensor
    qkv: Tensor
    convolutions: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    temperature: Tensor
    o: Tensor
    residual: Residual


@dataclass(frozen=True)
class RouterWeights:
    """The router's three hidden layers, `(weight, bias)` each, norm, last layer and biases."""

    down: tuple[Tensor, Tensor]
    norm: Tensor
    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    last: Tensor
    balancing: Tensor


@dataclass(frozen=True)
class MixtureWeights:
    """One mixture's tensors without its experts, which are read one at a time."""

    norm: Tensor
    router: RouterWeights
    residual: Residual


class Reader:
    """Tensors of one layer in one dtype.

    Args:
        dtype: `np.float16` for what is converted, `np.float32` for references.
    """

    def __init__(
        self, source: Source, config: ZayaConfig, index: int, dtype: npt.DTypeLike
    ) -> None:
        self._source, self._config, self._index, self._dtype = source, config, index, dtype

    def attention(self) -> AttentionWeights:
        """Weights of an attention layer; convolutions that overflow fp16 are left out."""
        c, width = self._config, self._config.width
        half, own = c.kv_channels // 2, "self_attn.qkv."
        parts = {"linear_q": c.q_channels, "linear_k": c.kv_channels}
        parts |= {"val_proj2": half, "val_proj1": half}
        qkv = [self._read(f"{own}{name}.weight", rows, width) for name, rows in parts.items()]
        bias = self._read(f"{own}conv_qk.0.bias", c.qk_channels)
        return AttentionWeights(
            norm=self._read("input_norm.weight", width),
            qkv=torch.cat(qkv),
            convolutions=None if bias.abs().max() > OVERFLOW_BIAS else self._convolutions(bias),
            temperature=self._read(f"{own}temp", c.kv_heads),
            o=self._read("self_attn.o_proj.weight", width, c.q_channels),
            residual=self.residual(),
        )

    def mixture(self) -> MixtureWeights:
        """A mixture of experts, without the experts."""
        c, own = self._config, "zaya_block.router."
        inner = {"router_mlp.0": c.router, "router_mlp.2": c.router, "down_proj": c.width}
        layers = {
            name: (
                self._read(f"{own}{name}.weight", c.router, columns),
                self._read(f"{own}{name}.bias", c.router),
            )
            for name, columns in inner.items()
        }
        router = RouterWeights(
            down=layers["down_proj"],
            norm=self._read(f"{own}rmsnorm_eda.weight", c.router),
            first=layers["router_mlp.0"],
            second=layers["router_mlp.2"],
            last=self._read(f"{own}router_mlp.4.weight", c.experts + 1, c.router),
            balancing=self._read(f"{own}balancing_biases", c.experts + 1),
        )
        norm = self._read("input_norm.weight", c.width)
        return MixtureWeights(norm, router, self.residual())

    def residual(self) -> Residual:
        """How a layer's output joins the residual stream."""
        scale, bias = (
            self._read(f"res_scale.hidden_states_{name}", self._config.width)
            for name in ("scale", "bias")
        )
        # The published first layer scales no residual: it has no tensors for it.
        names = self._source.names
        if self._index == 0 and names and f"{prefix(0)}res_scale.residual_scale" not in names:
            return Residual(scale, bias, torch.ones_like(scale), torch.zeros_like(bias))
        residual = (
            self._read(f"res_scale.residual_{name}", self._config.width)
            for name in ("scale", "bias")
        )
        return Residual(scale, bias, *residual)

    def expert(self, number: int) -> tuple[Tensor, Tensor]:
        """An expert's projections, `[2 F, C]` and `[C, F]`."""
        c, own = self._config, f"zaya_block.experts.local_experts.{number}."
        return (
            self._read(f"{own}linear_fc1.weight", 2 * c.ffn, c.width),
            self._read(f"{own}linear_fc2.weight", c.width, c.ffn),
        )

    def project(self, x: Tensor, number: int, layer: str) -> Tensor:
        """`x W^T [T, O]` for an expert's `linear_fc1` or `linear_fc2`, never held as a whole.

        A band of rows fits the processor's cache, where it is widened and multiplied at once.
        """
        c = self._config
        rows, columns = (2 * c.ffn, c.width) if layer == "linear_fc1" else (c.width, c.ffn)
        own = f"zaya_block.experts.local_experts.{number}.{layer}.weight"
        name, products = f"{prefix(self._index)}{own}", torch.empty(rows, len(x))
        for first in range(0, rows, _BAND):
            band = range(first, min(first + _BAND, rows))
            weight = torch.from_numpy(self._source.rows(name, band, columns, rows))
            torch.mm(weight, x.T, out=products[first : band.stop])
        return products.T

    def _convolutions(self, bias: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        channels, own = self._config.qk_channels, "self_attn.qkv.conv_qk."
        depthwise = self._read(f"{own}0.weight", channels, 1, 2)
        grouped = self._read(f"{own}1.weight", channels, self._config.head, 2)
        return (depthwise, bias), (grouped, self._read(f"{own}1.bias", channels))

    def _read(self, name: str, *shape: int) -> Tensor:
        return torch.from_numpy(
            self._source.tensor(f"{prefix(self._index)}{name}", shape, self._dtype)
        )


def read_final_norm(source: Source, config: ZayaConfig, dtype: npt.DTypeLike) -> Tensor:
    """The weights `[C]` of the norm before the head."""
    return torch.from_numpy(source.tensor(FINAL_NORM, (config.width,), dtype))


def head_rows(source: Source, config: ZayaConfig, index: int) -> Iterator[FloatArray]:
    """A vocabulary slice's rows `[*, C]`, some at a time; a tied head's are the embedding's."""
    name = OUTPUT if OUTPUT in source.names else EMBEDDING
    first, last = slice_bounds(config.vocabulary, config.slices, index)
    for row in range(first, last, _ROWS):
        rows = range(row, min(row + _ROWS, last))
        yield source.rows(name, rows, config.width, config.vocabulary)


def read_head(source: Source, config: ZayaConfig, index: int) -> Tensor:
    """A vocabulary slice's projection `[V / slices, C]` cast to fp16; beyond 65,504 it is inf."""
    name = OUTPUT if OUTPUT in source.names else EMBEDDING
    rows = range(*slice_bounds(config.vocabulary, config.slices, index))
    return torch.from_numpy(source.rows(name, rows, config.width, config.vocabulary, np.float16))
