"""Names of a ZAYA1 model's tensors, as its first release and the lab's shards have them.

Synthetic ones have magnitudes that keep activations of a trained model's order: for states of RMS
1, a layer gives about a tenth of what the residual stream carries.
"""

from __future__ import annotations

import math
import re

from pytest_ane.sources import Spread

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.final_norm.weight"
OUTPUT = "lm_head.weight"

_LAYER = (
    r"input_norm\.weight"
    r"|res_scale\.(hidden_states|residual)_(scale|bias)"
    r"|self_attn\.qkv\.(linear_q|linear_k|val_proj1|val_proj2)\.weight"
    r"|self_attn\.qkv\.(conv_qk\.[01]\.(weight|bias)|temp)"
    r"|self_attn\.o_proj\.weight"
    r"|zaya_block\.router\.(down_proj|router_mlp\.[02])\.(weight|bias)"
    r"|zaya_block\.router\.(rmsnorm_eda\.weight|router_mlp\.4\.weight|balancing_biases)"
    r"|zaya_block\.experts\.local_experts\.\d+\.linear_fc[12]\.weight"
)

_LEFT_OUT = r"zaya_block\.router\.router_states_scale"
"""Carries the router's state from one mixture to the next, which separate shards do not."""

KNOWN = re.compile(
    rf"model\.(embed_tokens|final_norm)\.weight|lm_head\.weight"
    rf"|model\.res_scale\.\w+|model\.layers\.\d+\.({_LAYER}|{_LEFT_OUT})"
)


def prefix(index: int) -> str:
    """What a layer's names begin with."""
    return f"model.layers.{index}."


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
    "residual_bias": Spread(0.01),
    "hidden_states_bias": Spread(0.01),
    "balancing_biases": Spread(0.05),
    "temp": Spread(0.1, mean=1.0),
    "norm.weight": Spread(0.1, mean=1.0),
    "rmsnorm_eda.weight": Spread(0.1, mean=1.0),
    "bias": Spread(0.05),
}


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """How a tensor's values are distributed, by the end of its name."""
    if _OVERFLOWING.fullmatch(name):
        return Spread(0.3, mean=6.0)
    if name in (EMBEDDING, OUTPUT):
        return Spread(0.1)
    fan_in = math.prod(shape[1:])
    for end, gain in _GAINS.items():
        if name.endswith(end):
            return Spread.of(gain * fan_in**-0.5, _OUTLIERS)
    for end, gain in _PLAIN_GAINS.items():
        if name.endswith(end):
            return Spread(gain * fan_in**-0.5)
    return next((small for end, small in _SMALL.items() if name.endswith(end)), Spread(0.02))
