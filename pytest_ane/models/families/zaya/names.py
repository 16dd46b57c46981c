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
from dataclasses import replace

from pytest_ane.models.families.decoder.names import PUBLISHED, Names, Parts
from pytest_ane.models.sources import Source, Spread
from pytest_ane.models.sources.settings import check_names

_FOLDED: Parts = {
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
    "zaya_block.experts.local_experts.{}.linear_fc1.weight": "mlp.experts.gate_up_proj",
    "zaya_block.experts.local_experts.{}.linear_fc2.weight": "mlp.experts.down_proj",
}
"""A layer's tensors, norms and residual scales apart, as both call them; `{}` is an expert."""

_SCALES = r"(hidden_states|residual)_(scale|bias)"
_HINT = (
    "It reads the names of transformers, and those of the first release, which Zyphra keeps as "
    "ZAYA1-8B-legacy."
)


class ZayaNames(Names):
    """Names in one file."""

    @classmethod
    def of(cls, source: Source) -> ZayaNames:
        """The names of a source; a synthetic one has the first release's.

        Raises:
            SourceError: a tensor would be left out.
        """
        if "model.norm.weight" in source.names:
            names = cls(PUBLISHED, "model.", own=_FOLDED)
            scales = rf"post_(attention|mlp)_residual_scale\.{_SCALES}"
            ends = r"model\.input_hidden_states_(scale|bias)"
        else:
            parts = {"norm": "final_norm", "attention_norm": "input_norm", "ffn_norm": "input_norm"}
            names = cls({**PUBLISHED, **parts}, "model.", own={name: name for name in _FOLDED})
            scales, ends = rf"res_scale\.{_SCALES}", rf"model\.res_scale\.{_SCALES}"
        norms = (f"{names.parts[part]}.weight" for part in ("attention_norm", "ffn_norm"))
        own = (re.escape(n).replace(r"\{\}", r"\d+") for n in (*names.own.values(), *norms))
        outside = (re.escape(names.whole(part)) for part in ("embedding", "norm", "head"))
        layer = rf"model\.layers\.\d+\.({'|'.join([*own, scales])})"
        known = re.compile("|".join([*outside, ends, layer]))
        check_names(source.label, "zaya", source.names, known, _HINT)
        return names

    @property
    def folded(self) -> bool:
        """Whether they are transformers', which has a layer's experts in one tensor."""
        return self.parts == PUBLISHED

    def layer(self, index: int) -> str:
        """What a layer's names begin with."""
        return f"model.layers.{index // 2 if self.folded else index}."

    def before(self, index: int, name: str, *, end: bool = False) -> str:
        """The residual scales that stand before a layer; the `end` is the one past the last."""
        if not self.folded:
            return f"{'model.' if end else self.layer(index)}res_scale.{name}"
        if index == 0:
            return f"model.input_{name}"
        behind = "mlp" if index % 2 == 0 else "attention"
        return f"{self.layer(index - 1)}post_{behind}_residual_scale.{name}"

    def expert(self, index: int, number: int, part: str) -> str:
        """The tensor with an expert's `linear_fc1` or `linear_fc2`."""
        name = self.own_of(index, f"zaya_block.experts.local_experts.{{}}.{part}.weight")
        return name.replace("{}", str(number))


_OUTLIERS = 0.03
_OVERFLOWING = tuple(f"layers.{i}.self_attn.qkv.conv_qk.0.bias" for i in (0, 76, 78))
"""Of the layers of ZAYA1-8B whose first convolution overflows fp16."""

_SPREADS: Mapping[tuple[str, ...], Spread] = {
    ("linear_q.weight", "linear_k.weight"): Spread(1.0, outliers=_OUTLIERS),
    ("val_proj1.weight", "val_proj2.weight"): Spread(1.0, outliers=_OUTLIERS),
    ("linear_fc1.weight",): Spread(1.0, outliers=_OUTLIERS),
    ("linear_fc2.weight",): Spread(0.4, outliers=_OUTLIERS),
    ("o_proj.weight",): Spread(0.15, outliers=_OUTLIERS),
    ("conv_qk.0.weight", "conv_qk.1.weight"): Spread(0.7),
    # The likeliest of 17 slots has a weight of about a half.
    ("down_proj.weight",): Spread(1.0),
    ("router_mlp.0.weight", "router_mlp.2.weight"): Spread(1.7),
    ("router_mlp.4.weight",): Spread(2.0),
    ("temp", "norm.weight", "rmsnorm_eda.weight"): Spread(0.1, mean=1.0),
    ("hidden_states_scale",): Spread(0.1, mean=1.0),
    ("residual_scale",): Spread(0.02, mean=1.0),
    ("router_states_scale",): Spread(0.1, mean=0.5),
    ("hidden_states_bias", "residual_bias"): Spread(0.01),
    _OVERFLOWING: Spread(0.3, mean=6.0),
    ("balancing_biases", "bias"): Spread(0.05),
}
"""By the ends of names, the first that fits: of a vector its values, of a matrix what it gives for
states of RMS 1."""


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """How a tensor's synthetic values are distributed, by the end of its name.

    Activations keep a trained model's order: for states of RMS 1 a layer gives about a tenth of
    what the residual stream carries.
    """
    told = next((it for ends, it in _SPREADS.items() if name.endswith(ends)), None)
    if told is None:  # The embedding, and a head of its own.
        return Spread(0.1)
    deviation = told.std * math.prod(shape[1:]) ** -0.5
    return replace(Spread.of(deviation, told.outliers), mean=told.mean)
