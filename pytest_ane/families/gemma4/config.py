"""Dimensions of a Gemma 4 model with experts by their published keys, and its tensors' names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_ane.core.errors import SourceError
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import (
    MAX_DIMENSION,
    MAX_LAYERS,
    check_names,
    check_variant,
    positive,
    whole,
)

VERSION = "gemma4/2"

PACKS = 8
"""Shards that a layer's experts are spread over, `p0` to `p7`."""

_SLIDING, _FULL = "rope_parameters.sliding_attention", "rope_parameters.full_attention"
_COUNTS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "ffn": "intermediate_size",
    "expert": "moe_intermediate_size",
    "experts": "num_experts",
    "top": "top_k_experts",
    "heads": "num_attention_heads",
    "head": "head_dim",
    "kv_heads": "num_key_value_heads",
    "global_head": "global_head_dim",
    "window": "sliding_window",
    "vocabulary": "vocab_size",
}
_REALS = {
    "theta": f"{_SLIDING}.rope_theta",
    "global_theta": f"{_FULL}.rope_theta",
    "global_rotated": f"{_FULL}.partial_rotary_factor",
    "epsilon": "rms_norm_eps",
    "cap": "final_logit_softcapping",
}
_PUBLISHED: Mapping[str, Any] = {
    "num_hidden_layers": 30,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_attention_heads": 16,
    "head_dim": 256,
    "num_key_value_heads": 8,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    f"{_SLIDING}.rope_theta": 10_000.0,
    f"{_FULL}.rope_theta": 1_000_000.0,
    f"{_FULL}.partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "vocab_size": 262_144,
}
"""Gemma-4-26B-A4B's `text_config`, for synthetic sources: docs/reference/families/gemma4.md."""

_ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "enable_moe_block": (True,),
    "attention_bias": (False,),
    "hidden_size_per_layer_input": (0, None),
    "num_kv_shared_layers": (0, None),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (None, "vision"),
    f"{_SLIDING}.rope_type": ("default",),
    f"{_FULL}.rope_type": ("proportional",),
}
"""Variants of the architecture that this family computes; text is causal under `"vision"` too."""


@dataclass(frozen=True)
class Gemma4Config:
    """Dimensions and constants.

    Attributes:
        width: channels of a hidden state.
        ffn: width of the dense feed-forward network; `expert` that of one expert.
        top: experts chosen at a position.
        head: channels of one head, `kv_heads` key heads; `global_*` on global layers.
        shared: whether values are the keys before their norm on global layers.
        window: positions that a sliding layer sees, its own included.
        global_rotated: share of a global head's pairs that turn.
        global_layers: the layers with global attention; all others slide.
        cap: soft cap of the logits.
    """

    layers: int
    width: int
    ffn: int
    expert: int
    experts: int
    top: int
    heads: int
    head: int
    kv_heads: int
    global_head: int
    global_kv_heads: int
    shared: bool
    window: int
    theta: float
    global_theta: float
    global_rotated: float
    epsilon: float
    cap: float
    vocabulary: int
    global_layers: tuple[int, ...]

    @classmethod
    def read(cls, source: Source) -> Gemma4Config:
        """Read a checkpoint's `config.json`.

        A synthetic source is the published 26B-A4B but for the keys it sets.

        Raises:
            SourceError: a key is missing or absurd, or the variant is none that is computed here.
        """
        check_variant(source.label, "gemma4", lambda key: _value(source, key, _ONLY[key][0]), _ONLY)
        counts: dict[str, Any] = {n: _count(source, key) for n, key in _COUNTS.items()}
        reals: dict[str, Any] = {
            n: positive(_value(source, key), f"{source.label}: {key}") for n, key in _REALS.items()
        }
        shared = bool(_value(source, "attention_k_eq_v"))
        kv_heads = "num_global_key_value_heads" if shared else "num_key_value_heads"
        config = cls(
            **counts,
            **reals,
            shared=shared,
            global_kv_heads=_count(source, kv_heads),
            global_layers=_global_layers(source, counts["layers"]),
        )
        config._check(source.label)
        return config

    def _check(self, label: str) -> None:
        if self.global_rotated > 1:
            raise SourceError(
                f"{label}: {self.global_rotated:g} of a head's channels turn, which is over 1."
            )
        if self.experts % PACKS or self.top > self.experts:
            raise SourceError(
                f"{label}: {self.experts} experts, {self.top} chosen; they are cut into {PACKS} "
                "packs of one size."
            )
        for heads, head in (
            (self.kv_heads, self.head),
            (self.global_kv_heads, self.global_head),
        ):
            if self.heads % heads or head % 2:
                raise SourceError(
                    f"{label}: {self.heads} query heads over {heads} key heads of {head} channels "
                    "do not divide."
                )

    @property
    def pack(self) -> int:
        """Experts of one pack: an eighth of the layer's."""
        return self.experts // PACKS

    def is_global(self, layer: int) -> bool:
        """Whether a layer sees all earlier positions."""
        return layer in self.global_layers

    def attention(self, layer: int) -> tuple[int, int]:
        """Channels of a head, and key heads, of a layer."""
        if self.is_global(layer):
            return self.global_head, self.global_kv_heads
        return self.head, self.kv_heads


def _global_layers(source: Source, layers: int) -> tuple[int, ...]:
    """Of `layer_types`; every sixth layer and the last where a synthetic source has none."""
    pattern = [i % 6 == 5 or i == layers - 1 for i in range(layers)]
    default = ["full_attention" if full else "sliding_attention" for full in pattern]
    types = _value(source, "layer_types", default)
    kinds = {"full_attention", "sliding_attention"}
    if not isinstance(types, list) or len(types) != layers or not set(types) <= kinds:
        raise SourceError(
            f"{source.label}: layer_types is {types!r}; expected one of {sorted(kinds)} for each "
            f"of {layers} layers."
        )
    return tuple(i for i, kind in enumerate(types) if kind == "full_attention")


def _count(source: Source, key: str) -> int:
    most = MAX_LAYERS if key == _COUNTS["layers"] else MAX_DIMENSION
    return whole(_value(source, key), f"{source.label}: {key}", most)


def _value(source: Source, key: str, otherwise: Any = None) -> Any:
    """A value of `text_config` or of a text-only configuration."""
    for name in (f"text_config.{key}", key):
        try:
            return source.value(name)
        except SourceError as error:
            absent = error
    if source.synthetic:
        return _PUBLISHED.get(key, otherwise)
    if key in _ONLY or key == "layer_types":
        return otherwise
    raise absent


_ROOTS = ("model.language_model.", "language_model.model.", "model.")
"""The published checkpoint's first; then what other savers and a text-only model write."""

_KNOWN = (
    r"layers\.\d+\.(layer_scalar"
    r"|(input|post_attention|pre_feedforward|post_feedforward)_layernorm\.weight"
    r"|(pre_feedforward_layernorm_2|post_feedforward_layernorm_[12])\.weight"
    r"|self_attn\.([qkvo]_proj|[qk]_norm)\.weight|mlp\.(gate|up|down)_proj\.weight"
    r"|router\.(proj\.weight|scale|per_expert_scale)|experts\.(gate_up|down)_proj)"
)


def root(source: Source) -> str:
    """What the names of the text model's tensors begin with.

    Raises:
        SourceError: the source has no embedding by any known name, or a text tensor that this
            family would leave out.
    """
    if source.synthetic:
        return _ROOTS[0]
    names = source.names
    prefix = next((r for r in _ROOTS if f"{r}embed_tokens.weight" in names), None)
    if prefix is None:
        raise SourceError(
            f"{source.label}: no tensor {_ROOTS[0]}embed_tokens.weight, so this is no Gemma 4 "
            "checkpoint in the published layout."
        )
    layers = re.compile(rf"(?!{re.escape(prefix)}layers\.).*|{re.escape(prefix)}({_KNOWN})")
    check_names(source.label, "gemma4", names, layers)
    return prefix


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """Distributions under which synthetic activations keep realistic magnitudes.

    Matrices keep the variance of what enters, and 3 % of their values lie at 5 sigma. The norms
    before each residual sum have mean 0.1, so that a block adds about a tenth of the stream.
    Queries and keys have norms d^(-1/4), so that scores have a variance near 1. Router logits have
    a standard deviation near 1.5. What does nothing at 1 is not 1: a layer's scalar is about 0.7,
    an eighth of the experts' scales is 0, and some are negative. Logits reach the soft cap of 30.
    """
    width = shape[-1] if shape else 1
    if name.endswith("layer_scalar"):
        return Spread(std=0.05, mean=0.7)
    if name.endswith("per_expert_scale"):
        return Spread(std=0.6, mean=0.7, zeros=0.125)
    if name == f"{_ROOTS[0]}norm.weight":
        return Spread(std=1.0, mean=10.0)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return Spread(std=0.1 * width**-0.25, mean=width**-0.25)
    if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
        return Spread(std=0.01, mean=0.1)
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "scale")):
        return Spread(std=0.1, mean=1.0)
    if name.endswith("router.proj.weight"):
        return Spread(std=1.5)
    if name.endswith("embed_tokens.weight"):
        return Spread(std=width**-0.5)
    return Spread.of(width**-0.5, outliers=0.03)
