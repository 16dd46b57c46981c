"""ZAYA1: the two halves of a layer of transformers, and the names and keys of its first release.

The first release, which Zyphra keeps as ZAYA1-8B-legacy, counts attentions and mixtures as layers
of their own, and has residual scales before each (`convert_zaya_weights_to_hf.py` of transformers'
pull request 45862).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.models.reference import (
    ALL,
    CLOSE,
    DecoderReference,
    Given,
    Layer,
    Rows,
    Run,
    Through,
    batch,
    each,
    rows_of,
    together,
)
from pytest_ane.models.reference._files import Tensors, made_from
from pytest_ane.models.sources import Source


class ZayaReference(DecoderReference):
    """Attention, or the mixture of experts, each with the scales behind it."""

    def attention(self, index: int) -> Run:
        """The residual stream after attention."""
        layer = self.opened(index)
        layer.only("input_layernorm", "self_attn", "post_attention_residual_scale")
        layer.fill()
        end = layer.module.post_attention_residual_scale
        return partial(each, lambda x: layer.given(x, end))

    def path(self, index: int, *, attention: bool) -> Run:
        """What the residual stream goes on with, without what a half of the layer adds."""
        if attention:
            layer = self.opened(index)
            layer.only("post_attention_residual_scale")
            layer.fill()
            return partial(each, partial(_carried, layer.module.post_attention_residual_scale))
        layer, _, gate, _ = self.routing(index)
        scale = layer.module.post_mlp_residual_scale

        def path(x: FloatArray) -> FloatArray:
            # The router's state is all path.
            *_, state = self.taken(layer, x, gate)[1]
            return np.concatenate([_carried(scale, self.states(x)), state[0].numpy()], axis=1)

        return partial(each, path)

    def mixture(self, index: int) -> Run:
        """What leaves the layer, the router's state below it, in and out."""
        layer = self.mixing(index)
        layer.fill(layer.module.mlp.experts)

        def run(x: FloatArray) -> FloatArray:
            hidden, state = self.taken(layer, x, layer.module)[1]
            return np.concatenate([hidden[0].numpy(), state[0].numpy()], axis=1)

        return partial(together, run)

    def undecided(self, index: int, own: range = ALL) -> Rows:
        """Positions at which rounding to fp16 decides which slot is chosen.

        As `close_choices` has it, products of the router's layers are off by up to 2^-11 of
        themselves, independently; of each layer's error the lead of the best slot has its
        derivative's part.
        """
        layer, _, gate, _ = self.routing(index)

        def tell(x: FloatArray) -> tuple[int, ...]:
            entered, _ = self.taken(layer, x, gate)
            return _close_slots(gate, [each for each in entered if each is not None])

        return partial(each, tell)

    def open_files(self, source: Source, usual: Mapping[str, Any]) -> tuple[Any, Tensors]:
        """A checkpoint of transformers', or one of the first release."""
        if "model.norm.weight" in source.names:
            return super().open_files(source, usual)
        table = first_table(source)
        config = made_from(table, source)
        return config, _FirstRelease(source, 2 * config.num_hidden_layers)

    def mixing(self, index: int) -> Layer:
        """The layer without its attention, which adds nothing."""
        layer = self.opened(index)
        layer.module.input_layernorm = Through()
        layer.module.self_attn = Given((None, None))
        layer.module.post_attention_residual_scale = _Second()
        return layer

    def taken(self, layer: Layer, x: FloatArray, module: nn.Module) -> tuple[list[Any], Any]:
        """As of any decoder, the router's state of the mixture before below the hidden states."""
        before = x[:, self.config.hidden_size :]
        state = batch(before) if before.size else None
        return layer.taken(self.states(x), module, prev_router_hidden_states=state)


class _Second(nn.Module):
    """Gives the residual stream as it is."""

    def forward(self, given: Any, residual: Tensor) -> Tensor:
        return residual


def _carried(scale: Any, x: FloatArray) -> FloatArray:
    rows: FloatArray = ((torch.from_numpy(x) + scale.residual_bias) * scale.residual_scale).numpy()
    return rows


def _close_slots(gate: Any, entered: Sequence[Tensor]) -> tuple[int, ...]:
    made: list[tuple[Tensor, nn.Linear, Tensor]] = []

    def note(linear: Any, args: Any, given: Tensor) -> None:
        made.append((args[0], linear, given))

    linears = [module for module in gate.modules() if isinstance(module, nn.Linear)]
    with ExitStack() as hooks, torch.inference_mode(False), torch.enable_grad():
        for linear in linears:
            hooks.enter_context(linear.register_forward_hook(note))
        x, *state = (each.clone() for each in entered)
        logits = gate(x.requires_grad_(), *state)[0]
        votes = torch.softmax(logits, dim=-1) + gate.balancing_biases
        best = votes.topk(2, dim=-1).values
        lead = best[:, 0] - best[:, 1]
        slopes = torch.autograd.grad(lead.sum(), [given for *_, given in made])
    variance = best.detach().square().sum(dim=-1)
    for slope, (x, linear, _) in zip(slopes, made, strict=True):
        noise = x.detach().square() @ linear.weight.square().T
        variance = variance + (slope.square() * noise).reshape(len(variance), -1).sum(dim=-1)
    return rows_of((lead.detach() <= CLOSE * variance.sqrt())[:, None])


_FIRST_RELEASE = (
    (r"model\.norm\.", "model.final_norm."),
    (r"model\.input_hidden_states_", "model.layers.0.res_scale.hidden_states_"),
    (r"(layers\.\d+)\.input_layernorm", r"\1+0.input_norm"),
    (r"(layers\.\d+)\.post_attention_layernorm", r"\1+1.input_norm"),
    (r"(layers\.\d+)\.post_attention_residual_scale", r"\1+1.res_scale"),
    (r"(layers\.\d+)\.post_mlp_residual_scale", r"\1+2.res_scale"),
    (r"(layers\.\d+)\.self_attn\.(qkv_proj|qk_norm)", r"\1+0.self_attn.qkv"),
    (r"(layers\.\d+)\.self_attn\.o_proj", r"\1+0.self_attn.o_proj"),
    (r"qkv\.([qk])_proj", r"qkv.linear_\1"),
    (r"v_proj_current", "val_proj1"),
    (r"v_proj_delayed", "val_proj2"),
    (r"conv_qk_depthwise", "conv_qk.0"),
    (r"conv_qk_grouped", "conv_qk.1"),
    (r"(layers\.\d+)\.mlp\.gate\.", r"\1+1.zaya_block.router."),
    (r"router_mlp\.norm", "rmsnorm_eda"),
    (r"router_mlp\.fc1", "router_mlp.0"),
    (r"router_mlp\.fc2", "router_mlp.2"),
    (r"router_mlp\.out_proj", "router_mlp.4"),
    (r"(layers\.\d+)\.mlp\.experts\.gate_up_proj", r"\1+1.{}.linear_fc1.weight"),
    (r"(layers\.\d+)\.mlp\.experts\.down_proj", r"\1+1.{}.linear_fc2.weight"),
)
"""What the first release calls transformers' tensors; `+1` is the second half of a layer."""
_EXPERT = "zaya_block.experts.local_experts.{}"
_KEYS: Mapping[str, Sequence[str]] = {
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("cca_num_q_heads", "num_attention_heads"),
    "num_key_value_heads": ("num_query_groups_list", "num_query_groups", "num_key_value_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "num_experts": ("num_experts",),
    "router_hidden_size": ("zaya_mlp_expansion", "router_hidden_size"),
    "vocab_size": ("vocab_size",),
    "rms_norm_eps": ("norm_epsilon", "rms_norm_eps"),
    "tie_word_embeddings": ("tie_word_embeddings",),
    "num_hidden_layers": ("num_hidden_layers",),
    "moe_intermediate_size": ("ffn_hidden_size_list", "ffn_hidden_size"),
    "rope_theta": ("rope_theta", "rotary_base"),
    "partial_rotary_factor": ("partial_rotary_factor",),
}
"""Keys of the first release, the telling one first; a list has a number for each layer."""


def first_name(name: str, layers: int) -> str:
    """The first release's name of a tensor of transformers'; `{}` is an expert's number."""
    for pattern, first in _FIRST_RELEASE:
        name = re.sub(pattern, first, name)
    name = name.replace("{}", _EXPERT)
    half = re.search(r"layers\.(\d+)\+(\d)", name)
    if half is None:
        return name
    index = 2 * int(half[1]) + int(half[2])
    return (
        name.replace(half[0], f"layers.{index}")
        if index < layers
        else f"model.res_scale{name.split('res_scale')[1]}"
    )


def first_table(source: Source) -> dict[str, Any]:
    """The first release's configuration as transformers has it."""
    told = {key: source.value(key) for key in source.keys}
    table: dict[str, Any] = {}
    for key, names in _KEYS.items():
        value = next((told[name] for name in names if told.get(name) is not None), None)
        if value is not None:
            table[key] = max(value) if isinstance(value, list) else value
    layers = table.get("num_hidden_layers", 80)
    table["num_hidden_layers"] = (layers + 1) // 2
    if "moe_intermediate_size" in table:
        table["moe_intermediate_size"] //= 2
    rope = {"rope_theta": table.pop("rope_theta", 5e6), "rope_type": "default"}
    rope["partial_rotary_factor"] = table.pop("partial_rotary_factor", 0.5)
    return {**table, "model_type": "zaya", "rope_parameters": {"hybrid": rope}}


class _FirstRelease(Tensors):
    """Tensors of the first release, whose names synthetic weights have too."""

    def __init__(self, source: Source, layers: int) -> None:
        super().__init__(source)
        self._layers = layers

    def read(self, home: str, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self.source.tensor(first_name(home, self._layers), shape))

    def table(self, model: Any, table: Any) -> str:
        own = table is not model.get_input_embeddings() and not model.config.tie_word_embeddings
        return "lm_head.weight" if own else "model.embed_tokens.weight"

    def bank(self, model: Any, home: str) -> str:
        return first_name(home, self._layers)

    def expert(self, name: str, shape: tuple[int, ...], expert: int) -> Tensor:
        return torch.from_numpy(self.source.tensor(name.format(expert), shape[1:]))
