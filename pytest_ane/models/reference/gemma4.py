"""The shards of a Gemma 4 layer: attention, packs of experts, and the pack that ends the layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference import (
    DecoderReference,
    Given,
    Layer,
    Run,
    Through,
    among,
    each,
    together,
)


class Gemma4Reference(DecoderReference):
    """transformers' layer, run in part.

    A pack takes what attention leaves, and gives what its own experts add. The last one takes the
    sum of the other packs below its hidden states, and gives what leaves the layer.
    """

    root = "model.language_model."

    def attention(self, index: int) -> Run:
        """The residual stream after attention."""
        layer = self.attending(index)
        end = layer.module.pre_feedforward_layernorm
        return partial(each, lambda x: layer.given(x, end))

    def attending(self, index: int) -> Layer:
        """A layer as far as its attention."""
        layer = self.opened(index)
        layer.only("input_layernorm", "self_attn", "post_attention_layernorm")
        layer.fill()
        return layer

    def pack(self, index: int, own: range) -> Run:
        """What some experts add at every position."""
        layer = self.mixing(index)
        layer.only("router", "pre_feedforward_layernorm_2", "experts")
        return partial(together, self._own_experts(layer, own))

    def last_pack(self, index: int, own: range) -> Run:
        """What leaves the layer, whose other experts are below what enters."""
        layer = self.mixing(index)
        add = self._own_experts(layer, own)
        experts = layer.module.experts

        def run(both: FloatArray) -> FloatArray:
            x, others = np.split(both, 2, axis=1)
            layer.module.experts = experts
            layer.module.experts = Given(torch.from_numpy(others + add(x)))
            return layer.given(x, layer.module)

        return partial(together, run)

    def path(self, index: int) -> Run:
        """What enters a last pack, times the layer's scalar."""
        layer = self.mixing(index)
        layer.only()
        layer.fill()
        scalar = layer.module.layer_scalar.numpy()
        return lambda sequences: [self.states(x) * scalar for x in sequences]

    def routing(self, index: int) -> tuple[Layer, nn.Module, Any, int]:
        """As of any decoder."""
        layer = self.mixing(index)
        layer.only("router")
        layer.module.experts = Given(None)
        layer.fill()
        top = self.config.get_text_config().top_k_experts
        return layer, layer.module.experts, layer.module.router.proj, top

    def mixing(self, index: int) -> Layer:
        """The layer without its attention, which adds nothing."""
        layer = self.opened(index)
        layer.module.input_layernorm = Through()
        layer.module.self_attn = Given((torch.zeros(1), None))
        layer.module.post_attention_layernorm = Through()
        return layer

    def _own_experts(self, layer: Layer, own: range) -> Callable[[FloatArray], FloatArray]:
        """What some experts add. Those beyond the last count as none, and are not read."""
        experts = layer.module.experts
        layer.fill(experts)

        def keep(_: Any, args: Any) -> Any:
            hidden, which, weights = args
            return hidden, torch.where(among(which, own), which, experts.num_experts), weights

        experts.register_forward_pre_hook(keep)
        return lambda x: layer.given(self.states(x), experts)
