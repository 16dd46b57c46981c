"""A ZAYA1 model's dimensions by the keys of its published `config.json`, and its tensors' names.

Names are those of its first release and of the lab's shards. Synthetic tensors have magnitudes that
keep activations of a trained model's order: for states of RMS 1, a layer gives about a tenth of
what the residual stream carries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ane.core.errors import SourceError
from pytest_ane.families import blocks
from pytest_ane.families.base import Cut, Wire
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import MAX_DIMENSION, MAX_LAYERS, check_variant, positive, whole

VERSION = "zaya/1"

_PUBLISHED: dict[str, tuple[float, tuple[str, ...]]] = {
    "layers": (80, ("num_hidden_layers",)),
    "width": (2048, ("hidden_size",)),
    "heads": (8, ("cca_num_q_heads", "num_attention_heads")),
    "kv_heads": (2, ("num_query_groups_list", "num_query_groups", "num_key_value_heads")),
    "head": (128, ("head_dim", "kv_channels")),
    "rotary": (0.5, ("partial_rotary_factor",)),
    "theta": (5e6, ("rope_theta", "rotary_base")),
    "experts": (16, ("num_experts",)),
    "fc1": (4096, ("ffn_hidden_size_list", "ffn_hidden_size")),
    "router": (256, ("zaya_mlp_expansion",)),
    "epsilon": (1e-5, ("norm_epsilon",)),
    "vocabulary": (262_272, ("vocab_size",)),
}
"""ZAYA1-8B's value of each dimension, and the keys that give it, the telling one first."""

_REALS = ("rotary", "theta", "epsilon")
_ONLY: dict[str, tuple[Any, ...]] = {
    "zaya_use_mod": (True,),
    "clamp_temp": (False,),
    "cca_time0": (2,),
    "cca_time1": (2,),
    "attention_bias": (False,),
    "add_bias_linear": (False,),
    "lm_head_bias": (False,),
    "sliding_window": (None, False),
    "swa_layers": (None, False),
    "rope_scaling": (None, False),
}
"""Variants that this family computes; another would be another model."""


@dataclass(frozen=True)
class ZayaConfig:
    """Dimensions; defaults are ZAYA1-8B's.

    Attributes:
        layers: attention on even, experts on odd ones.
        width: channels of a hidden state.
        heads: query heads; `kv_heads` of them share keys and values in groups.
        head: channels of one head, the first `rotary` of them rotated.
        theta: base of the rotary frequencies.
        experts: experts of a layer; the router has one slot more, which stands for none.
        ffn: an expert's inner channels, half of what its first projection gives.
        router: the router's inner channels.
        epsilon: RMSNorm's.
        slices: vocabulary slices of the head.
        context: positions of a key-value state.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    rotary: int
    theta: float
    experts: int
    ffn: int
    router: int
    epsilon: float
    vocabulary: int
    slices: int
    context: int

    @property
    def q_channels(self) -> int:
        """Channels of all query heads together."""
        return self.heads * self.head

    @property
    def kv_channels(self) -> int:
        """Channels of all keys, and of all values."""
        return self.kv_heads * self.head

    @property
    def qk_channels(self) -> int:
        """Channels that the convolutions of the attention mix."""
        return self.q_channels + self.kv_channels

    @property
    def tail_channels(self) -> int:
        """Channels that a position leaves to the next ones: queries, keys, half of the values."""
        return self.qk_channels + self.kv_channels // 2

    @classmethod
    def read(cls, source: Source, slices: int, cut: Cut) -> ZayaConfig:
        """Read from `config.json`; a synthetic source is ZAYA1-8B where it does not say otherwise.

        Raises:
            SourceError: a key is missing, absurd, or of a variant that this family lacks.
        """
        check_variant(source.label, "zaya", source.value, _ONLY)
        reals = {name: positive(*_value(source, name)) for name in _REALS}
        counts = {
            name: whole(*_value(source, name), MAX_LAYERS if name == "layers" else MAX_DIMENSION)
            for name in _PUBLISHED
            if name not in _REALS
        }
        head, fc1 = counts["head"], counts.pop("fc1")
        config = cls(
            **counts,
            rotary=int(head * min(reals["rotary"], 2.0)),
            theta=reals["theta"],
            epsilon=reals["epsilon"],
            ffn=fc1 // 2,
            slices=slices,
            context=cut.context,
        )
        odd = config.kv_channels % 2 or config.rotary % 2 or fc1 % 2
        if config.heads % config.kv_heads or odd or config.rotary > head:
            raise SourceError(
                f"{source.label}: {config.heads} query heads, {config.kv_heads} key heads of "
                f"{head} channels, {config.rotary} of them rotated, and {fc1} channels of an "
                "expert's two halves do not divide evenly."
            )
        return config


def _value(source: Source, name: str) -> tuple[Any, str]:
    """A dimension's value, and what a sentence about it begins with."""
    default, keys = _PUBLISHED[name]
    for key in keys:
        try:
            value = source.value(key)
        except SourceError:
            continue
        what = f"{source.label}: {key}"
        if not isinstance(value, list):
            return value, what
        # One entry a layer in some releases: 0 where the layer has none of it.
        numbers = [n for n in value if isinstance(n, (int, float)) and not isinstance(n, bool)]
        if len(numbers) < len(value) or not numbers:
            positive(value, what)
        return max(numbers), what
    if not source.synthetic:
        raise SourceError(f"{source.label}: config.json has none of {', '.join(keys)}.")
    return default, name


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """Layers `L00`, `L01`... one after another, then head slices `head.0`, `head.1`...

    Raises:
        ManifestError: a shard id is neither.
    """
    return tuple(map(_kind, blocks.wiring(shards, "zaya")))


def _kind(wire: Wire) -> Wire:
    if blocks.is_head(wire.shard):
        return wire
    attends = is_attention(blocks.block_index(wire.shard))
    return replace(wire, kind="attention" if attends else "mixture")


def state_shapes(config: ZayaConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of an attention layer's states by name."""
    return {
        "kv_cache": (2 * config.kv_heads, 1, config.context, config.head),
        "tail": (1, 1, 2, config.tail_channels),
    }


def is_attention(index: int) -> bool:
    """Whether a layer is attention; the others are mixtures of experts."""
    return index % 2 == 0


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
