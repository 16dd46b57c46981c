"""What ZAYA1's tensors are called: by its first release, and by transformers.

The first release, which Zyphra keeps as ZAYA1-8B-legacy, has 80 layers, each with the residual
scales that stand before it. transformers folds an attention and the mixture after it into one
layer, with the scales that stand behind each (`convert_zaya_weights_to_hf.py` of its pull request
45862). What is asked for here is by the first release's names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ane.families.decoder.names import Names
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import check_names

_FOLDED: Mapping[str, str] = {
    "self_attn.qkv.linear_q.weight": "self_attn.qkv_proj.q_proj.weight",
    "self_attn.qkv.linear_k.weight": "self_attn.qkv_proj.k_proj.weight",
    "self_attn.qkv.val_proj1.weight": "self_attn.qkv_proj.v_proj_current.weight",
    "self_attn.qkv.val_proj2.weight": "self_attn.qkv_proj.v_proj_delayed.weight",
    "self_attn.qkv.conv_qk.0.weight": "self_attn.qkv_proj.conv_qk_depthwise.weight",
    "self_attn.qkv.conv_qk.0.bias": "self_attn.qkv_proj.conv_qk_depthwise.bias",
    "self_attn.qkv.conv_qk.1.weight": "self_attn.qkv_proj.conv_qk_grouped.weight",
    "self_attn.qkv.conv_qk.1.bias": "self_attn.qkv_proj.conv_qk_grouped.bias",
    "self_attn.qkv.temp": "self_attn.qk_norm.temp",
    "self_attn.o_proj.weight": "self_attn.o_proj.weight",
    "zaya_block.router.down_proj.weight": "mlp.gate.down_proj.weight",
    "zaya_block.router.down_proj.bias": "mlp.gate.down_proj.bias",
    "zaya_block.router.rmsnorm_eda.weight": "mlp.gate.router_mlp.norm.weight",
    "zaya_block.router.router_mlp.0.weight": "mlp.gate.router_mlp.fc1.weight",
    "zaya_block.router.router_mlp.0.bias": "mlp.gate.router_mlp.fc1.bias",
    "zaya_block.router.router_mlp.2.weight": "mlp.gate.router_mlp.fc2.weight",
    "zaya_block.router.router_mlp.2.bias": "mlp.gate.router_mlp.fc2.bias",
    "zaya_block.router.router_mlp.4.weight": "mlp.gate.router_mlp.out_proj.weight",
    "zaya_block.router.balancing_biases": "mlp.gate.balancing_biases",
    "zaya_block.router.router_states_scale": "mlp.gate.router_states_scale",
}
"""A layer's tensors, its experts, first norm and residual scales apart."""

_SCALES = r"(hidden_states|residual)_(scale|bias)"
_FC = {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}


def _layers(names: tuple[str, ...], *more: str) -> str:
    return rf"model\.layers\.\d+\.({'|'.join([*map(re.escape, names), *more])})"


_KNOWN = {
    False: re.compile(
        rf"model\.(embed_tokens|final_norm)\.weight|lm_head\.weight|model\.res_scale\.{_SCALES}|"
        + _layers(
            (*_FOLDED, "input_norm.weight"),
            rf"res_scale\.{_SCALES}",
            r"zaya_block\.experts\.local_experts\.\d+\.linear_fc[12]\.weight",
        )
    ),
    True: re.compile(
        r"model\.(embed_tokens|norm)\.weight|lm_head\.weight"
        r"|model\.input_hidden_states_(scale|bias)|"
        + _layers(
            (*_FOLDED.values(), "input_layernorm.weight", "post_attention_layernorm.weight"),
            rf"post_(attention|mlp)_residual_scale\.{_SCALES}",
            r"mlp\.experts\.(gate_up|down)_proj",
        )
    ),
}


@dataclass(frozen=True)
class ZayaNames(Names):
    """Names in one file.

    Attributes:
        layers: attention and mixtures, as many as shards.
    """

    layers: int = 0

    @property
    def folded(self) -> bool:
        """Whether they are transformers'."""
        return self.parts["norm"] == "norm"

    @classmethod
    def of(cls, source: Source) -> ZayaNames:
        """The names of a source; a synthetic one has the first release's.

        Raises:
            SourceError: a tensor would be left out.
        """
        folded = "model.norm.weight" in source.names
        hint = (
            "It reads the names of transformers, and those of the first release, which Zyphra "
            "keeps as ZAYA1-8B-legacy."
        )
        check_names(source.label, "zaya", source.names, _KNOWN[folded], hint)
        return cls(
            {"embedding": "embed_tokens", "norm": "norm" if folded else "final_norm"}, "model."
        )

    def of_layer(self, index: int, name: str) -> str:
        """A tensor of a layer."""
        if not self.folded:
            return f"model.layers.{index}.{name}"
        norm = "post_attention_layernorm" if index % 2 else "input_layernorm"
        return f"model.layers.{index // 2}.{_FOLDED.get(name, f'{norm}.weight')}"

    def before(self, index: int, name: str) -> str:
        """The residual scales that stand before a layer; before the one past the last, the end."""
        if not self.folded:
            end = index == self.layers
            return f"model.res_scale.{name}" if end else f"model.layers.{index}.res_scale.{name}"
        if index == 0:
            return f"model.input_{name}"
        behind = "mlp" if index % 2 == 0 else "attention"
        return f"model.layers.{(index - 1) // 2}.post_{behind}_residual_scale.{name}"

    def experts(self, index: int, number: int, layer: str) -> tuple[str, bool]:
        """The tensor with an expert's `linear_fc1` or `linear_fc2`, and whether it has all."""
        if self.folded:
            return f"model.layers.{index // 2}.mlp.experts.{_FC[layer]}", True
        own = f"zaya_block.experts.local_experts.{number}.{layer}.weight"
        return f"model.layers.{index}.{own}", False


_OUTLIERS = 0.03

_OVERFLOWING = re.compile(r"model\.layers\.(0|76|78)\.self_attn\.qkv\.conv_qk\.0\.bias")
"""The layers of ZAYA1-8B whose first convolution overflows fp16."""

_GAINS = {
    # The big matrices: what RMS they give of RMS 1.
    "linear_q.weight": 1.0,
    "linear_k.weight": 1.0,
    "val_proj1.weight": 1.0,
    "val_proj2.weight": 1.0,
    "o_proj.weight": 0.15,
    "linear_fc1.weight": 1.0,
    "linear_fc2.weight": 0.4,
}
_PLAIN_GAINS = {
    # The likeliest of 17 slots has a weight of about a half.
    "down_proj.weight": 1.0,
    "router_mlp.0.weight": 1.7,
    "router_mlp.2.weight": 1.7,
    "router_mlp.4.weight": 2.0,
    "conv_qk.0.weight": 0.7,
    "conv_qk.1.weight": 0.7,
}
_SMALL = {
    "residual_scale": Spread(0.02, mean=1.0),
    "hidden_states_scale": Spread(0.1, mean=1.0),
    "router_states_scale": Spread(0.1, mean=0.5),
    "residual_bias": Spread(0.01),
    "hidden_states_bias": Spread(0.01),
    "balancing_biases": Spread(0.05),
    "temp": Spread(0.1, mean=1.0),
    "norm.weight": Spread(0.1, mean=1.0),
    "rmsnorm_eda.weight": Spread(0.1, mean=1.0),
    "bias": Spread(0.05),
}


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """How a tensor's synthetic values are distributed, by the end of its name.

    Activations keep a trained model's order: for states of RMS 1 a layer gives about a tenth of
    what the residual stream carries.
    """
    if _OVERFLOWING.fullmatch(name):
        return Spread(0.3, mean=6.0)
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return Spread(0.1)
    fan_in = math.prod(shape[1:])
    for end, gain in _GAINS.items():
        if name.endswith(end):
            return Spread.of(gain * fan_in**-0.5, _OUTLIERS)
    for end, gain in _PLAIN_GAINS.items():
        if name.endswith(end):
            return Spread(gain * fan_in**-0.5)
    return next((small for end, small in _SMALL.items() if name.endswith(end)), Spread(0.02))
