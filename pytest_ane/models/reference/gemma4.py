"""The shards of a Gemma 4 layer: attention, packs of experts, and the pack that ends the layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference import (
    Choices,
    Given,
    Layer,
    Routes,
    Rows,
    Run,
    Through,
    TransformersModel,
    each,
    together,
)
from pytest_ane.models.reference._routing import chosen, close_choices, rows_of


class Gemma4Reference(TransformersModel):
    """transformers' layer, run in part.

    A pack takes what attention leaves, and gives what its own experts add. The last one takes the
    sum of the other packs below its hidden states, and gives what leaves the layer.
    """

    root = "model.language_model."

    def attention(self, index: int) -> Run:
        """The residual stream after attention."""
        layer = self.attending(index)
        end = layer.module.pre_feedforward_layernorm
        return partial(each, lambda x: layer.given(x, end)[0])

    def attending(self, index: int) -> Layer:
        """What makes a layer's keys and values."""
        layer = self.opened(index)
        layer.only("input_layernorm", "self_attn", "post_attention_layernorm")
        layer.fill()
        return layer

    def pack(self, index: int, own: range) -> Run:
        """What some experts add at every position."""
        layer = self._behind_attention(index)
        layer.only("router", "pre_feedforward_layernorm_2", "experts")
        return partial(together, self._own_experts(layer, own))

    def last_pack(self, index: int, own: range) -> Run:
        """What leaves the layer, whose other experts are below what enters."""
        layer = self._behind_attention(index)
        add = self._own_experts(layer, own)
        experts = layer.module.experts

        def run(both: FloatArray) -> FloatArray:
            x, others = np.split(both, 2, axis=1)
            layer.module.experts = Given(torch.from_numpy(others + add(x)))
            y = layer.given(x, layer.module)[0]
            layer.module.experts = experts
            return y

        return partial(together, run)

    def path(self, index: int) -> Run:
        """What enters a last pack, times the layer's scalar."""
        layer = self._behind_attention(index)
        layer.only()
        layer.fill()
        scalar = layer.module.layer_scalar.numpy()
        return lambda sequences: [self._states(x) * scalar for x in sequences]

    def routed(self, index: int, own: range) -> Choices:
        """A pack's own experts that are chosen at each position."""
        layer = self._routing(index)

        def tell(x: FloatArray) -> Routes:
            _, which, weights = layer.entered(self._states(x), layer.module.experts)
            weights = weights.masked_fill(~_among(which, own), 0)
            return chosen(which, weights)

        return partial(each, tell)

    def undecided(self, index: int, own: range) -> Rows:
        """Positions at which fp16 cannot tell whether one of a pack's own experts is chosen."""
        layer = self._routing(index)
        projection, top = layer.module.router.proj, self.config.get_text_config().top_k_experts

        def tell(x: FloatArray) -> tuple[int, ...]:
            (entered,) = layer.entered(self._states(x), projection)
            close = close_choices(entered, projection.weight, top)
            return rows_of(close[:, own.start : own.stop])

        return partial(each, tell)

    def _routing(self, index: int) -> Layer:
        layer = self._behind_attention(index)
        layer.only("router")
        layer.module.experts = Given(None)
        layer.fill()
        return layer

    def _behind_attention(self, index: int) -> Layer:
        """The layer without its attention, which adds nothing."""
        layer = self.opened(index)
        layer.module.input_layernorm = Through()
        layer.module.self_attn = Given((torch.zeros(1), None))
        layer.module.post_attention_layernorm = Through()
        return layer

    def _own_experts(self, layer: Layer, own: range) -> Callable[[FloatArray], FloatArray]:
        """What some experts add. Those beyond the last count as none, and are not read."""
        experts = layer.module.experts
        layer.fill_experts(experts)
        layer.fill()

        def among(_: Any, args: Any) -> Any:
            hidden, which, weights = args
            return hidden, torch.where(_among(which, own), which, experts.num_experts), weights

        experts.register_forward_pre_hook(among)
        return lambda x: layer.given(self._states(x), experts)[0]

    def _states(self, x: FloatArray) -> FloatArray:
        """Hidden states `[T, C]`, without what a last pack has below them."""
        return x[:, : self.config.get_text_config().hidden_size]


def _among(which: Tensor, own: range) -> Tensor:
    return (which >= own.start) & (which < own.stop)
