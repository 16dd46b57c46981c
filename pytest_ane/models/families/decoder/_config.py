"""What a decoder is made of, and what files call its tensors: published checkpoints and GGUF."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._blocks import block_index, is_head
from pytest_ane.models.families._layout import AneLayout, Rotary
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import check_names, check_numbers

Activation = Literal["silu", "gelu_pytorch_tanh"]
_STATE_STEP = 32
"""The last axis of a state is a multiple of it on the ANE (rule R058)."""


@dataclass(frozen=True)
class Layer:
    """One layer of the stack.

    Attributes:
        rotary: which of the configuration's `rotaries` turns queries and keys; None for none.
        window: positions that are seen, its own included; None for all.
        sparse: whether its network is a mixture of experts.
        head, kv_heads: channels of a head, and key heads; None for the model's.
        shared: whether values are the keys before their norm, so that it has no `v`.
    """

    rotary: int | None = 0
    window: int | None = None
    sparse: bool = False
    head: int | None = None
    kv_heads: int | None = None
    shared: bool = False


@dataclass(frozen=True)
class Mixture:
    """Experts of a sparse layer, of which each position chooses the `top` of the largest logits.

    An expert has `ffn` inner channels. Where `normalized`, the shares of the chosen ones sum to 1;
    else they are of all experts. An expert of all positions, weighed by a sigmoid, has `shared`.
    """

    experts: int
    top: int
    ffn: int
    normalized: bool = True
    shared: int | None = None


@dataclass(frozen=True)
class DecoderConfig:
    """A stack of layers: norm, attention, norm, gated feed-forward network.

    Attributes:
        width: channels of a hidden state.
        heads: query heads; `kv_heads` of them share keys and values in groups.
        scale: of scores, before the cap.
        biases: projections with a bias, of `q k v o gate up down`.
        head_norms: whether each head's queries and keys are normed before they turn.
        value_norms: whether each head's values are, without a weight.
        mixture: of the sparse layers.
        post_norms: whether what attention and the network give is normed before it is added.
        score_cap, logit_cap: soft caps c tanh(x / c).
        embedding_scale, residual_scale, logit_scale: factors of the embedding, of what a layer's
            halves add, and of the logits.
        stream_scale: what the ANE form's hidden states are of the model's, a power of two: those of
            some models are beyond fp16, and norms make nothing of their size.
        context: positions of a key-value state; None where blocks keep none.
    """

    family: str
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    epsilon: float
    scale: float
    layers: tuple[Layer, ...]
    rotaries: tuple[Rotary, ...]
    activation: Activation = "silu"
    mixture: Mixture | None = None
    biases: tuple[str, ...] = ()
    head_norms: bool = False
    value_norms: bool = False
    post_norms: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    stream_scale: float = 1.0
    tied: bool = True
    slices: int = 1
    max_tokens: int = 64
    context: int | None = None

    def layout(self, index: int) -> AneLayout:
        layer = self.layers[index]
        rotary = None if layer.rotary is None else self.rotaries[layer.rotary]
        slots = self.slots(index)
        return AneLayout(
            self.family,
            self.width,
            rotary,
            slots,
            layer.window,
            attends=True,
            ring=slots != self.context,
            entry_scale=self.stream_scale,
            exit_scale=1 / self.stream_scale,
        )

    @property
    def head_layout(self) -> AneLayout:
        return AneLayout(self.family, self.width, entry_scale=self.stream_scale)

    @property
    def stream_epsilon(self) -> float:
        """Of norms over the ANE form's hidden states, which leaves what they give unchanged."""
        return self.epsilon * self.stream_scale**2

    def heads_of(self, index: int) -> tuple[int, int]:
        layer = self.layers[index]
        return layer.head or self.head, layer.kv_heads or self.kv_heads

    def mixture_of(self, index: int) -> Mixture | None:
        return self.mixture if self.layers[index].sparse else None

    def slots(self, index: int) -> int | None:
        """Positions of a layer's state: of a window what the longest call sees, and its own."""
        window = self.layers[index].window
        if self.context is None or window is None:
            return self.context
        ring = ceil((window - 1 + self.max_tokens) / _STATE_STEP) * _STATE_STEP
        return min(self.context, ring)

    def filled(self, index: int, k: FloatArray, v: FloatArray) -> dict[str, FloatArray]:
        """The states `[KV, 1, d, S]` after a sequence whose keys and values are `[KV, T, d]`."""
        slots = self.slots(index) or 0
        last = np.arange(max(0, k.shape[1] - slots), k.shape[1])
        states = {}
        for name, values in (("k_cache", k), ("v_cache", v)):
            state = np.zeros((len(values), 1, values.shape[2], slots), np.float32)
            state[:, 0, :, last % slots] = values[:, last].transpose(1, 0, 2)
            states[name] = state
        return states

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> DecoderConfig:
        rotaries, mixture = description["rotaries"], description["mixture"]
        parts = {
            "layers": tuple(Layer(**layer) for layer in description["layers"]),
            "rotaries": tuple(Rotary(tuple(r["frequencies"]), r["factor"]) for r in rotaries),
            "biases": tuple(description["biases"]),
            "mixture": None if mixture is None else Mixture(**mixture),
        }
        return cls(**{**description, **parts})


Parts = Mapping[str, str]

PUBLISHED: Parts = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "attention_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Names of transformers' modules, which most families share."""
GGUF: Parts = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "attention_post_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
    "expert_gate": "ffn_gate_exps",
    "expert_up": "ffn_up_exps",
    "expert_down": "ffn_down_exps",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
    "shared_router": "ffn_gate_inp_shexp",
    "ffn_post_norm": "post_ffw_norm",
}
"""Names of llama.cpp, the same for all architectures (`gguf-py/gguf/constants.py`)."""
FREQUENCY_FACTORS = "rope_freqs.weight"
"""Divisors of RoPE's frequencies in GGUF."""
SHORT_FACTORS = "rope_factors_short.weight"
"""LongRoPE's divisors in GGUF, up to the length that the model was trained with."""
ATTENTION = ("q", "k", "v", "o")
FEED_FORWARD = ("gate", "up", "down")
LINEAR = (*ATTENTION, *FEED_FORWARD)
SHARED = ("shared_gate", "shared_up", "shared_down", "shared_router")
_ROOTS = ("model.", "model.language_model.", "language_model.model.", "")
_BESIDE = (
    r"(model\.)?(vision_tower|vision_model|audio_tower|multi_modal_projector"
    r"|embed_vision|embed_audio)\..*"
)
_HARMLESS = r".*rotary_emb\.inv_freq|rope_freqs\.weight"
_LONGROPE = r"rope_factors_(long|short)\.weight"


@dataclass(frozen=True)
class Names:
    """Names in one file.

    Attributes:
        root: what a published checkpoint's names begin with; None for GGUF.
        fused: parts whose rows are stored in one tensor, in this order.
        norm_offset: what a norm's stored weights lack: 1 where x (1 + w) is meant.
        paired: whether rows of queries and keys are in adjacent pairs.
        own: tensors of a block that the family reads by itself, by their published names.
    """

    parts: Parts
    root: str | None = None
    fused: Sequence[Sequence[str]] = ()
    norm_offset: float = 0.0
    paired: bool = False
    own: Parts = field(default_factory=dict)

    def whole(self, part: str) -> str:
        """A tensor outside of the blocks: `embedding`, `norm` or `head`."""
        if self.root is None:
            return f"{self.parts[part]}.weight"
        if part == "head":
            return f"{'language_model.' if self.root.startswith('language') else ''}lm_head.weight"
        return f"{self.root}{self.parts[part]}.weight"

    def block(self, index: int, part: str, kind: str = "weight") -> str:
        return f"{self.layer(index)}{self.parts[part]}.{kind}"

    def own_of(self, index: int, name: str) -> str:
        return f"{self.layer(index)}{self.own[name]}"

    def layer(self, index: int) -> str:
        return f"blk.{index}." if self.root is None else f"{self.root}layers.{index}."

    def expert(self, index: int, number: int, part: str) -> str:
        return self.block(index, f"expert_{part}").replace("{}", str(number))

    def of_block(self, config: DecoderConfig, index: int) -> Iterator[str]:
        parts = parts_of(config, index)
        yield from (self.block(index, part) for part in parts)
        yield from (self.block(index, part, "bias") for part in config.biases if part in parts)
        if (mixture := config.mixture_of(index)) is not None:
            yield self.block(index, "router")
            for number in range(mixture.experts):
                yield from (self.expert(index, number, part) for part in FEED_FORWARD)
            if mixture.shared is not None:
                yield from (self.block(index, part) for part in SHARED)

    def check(self, source: Source, family: str, config: DecoderConfig) -> None:
        first = {(it.sparse, it.shared): i for i, it in reversed([*enumerate(config.layers)])}
        blocks = {re.escape(name) for i in first.values() for name in self.of_block(config, i)}
        blocks |= {re.escape(self.own_of(0, name)) for name in self.own}
        patterns = {re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", name) for name in blocks}
        patterns |= {re.escape(self.whole(part)) for part in ("embedding", "norm", "head")}
        patterns.add(_HARMLESS)
        if SHORT_FACTORS in source.names:
            patterns.add(_LONGROPE)
        if self.root not in (None, "model.", ""):
            patterns.add(_BESIDE)
        check_names(source.label, family, source.names, re.compile("|".join(patterns)))
        self.check_extent(source, len(config.layers), config.mixture)

    def check_extent(self, source: Source, layers: int, mixture: Mixture | None) -> None:
        layer = re.escape(self.layer(0)).replace("0", r"(\d+)")
        check_numbers(source.label, source.names, layer, layers)
        if mixture is not None:
            expert = layer.replace("(", "(?:") + r".*experts\.(\d+)\."
            check_numbers(source.label, source.names, expert, mixture.experts, "experts")

    def require(self, source: Source, config: DecoderConfig, shards: Sequence[str]) -> None:
        blocks = (block_index(shard) for shard in shards if not is_head(shard))
        needed = [name for index in blocks for name in self.of_block(config, index)]
        if any(map(is_head, shards)):
            needed += map(self.whole, ("norm", "embedding" if config.tied else "head"))
        if missing := [name for name in needed if name not in source.names]:
            raise SourceError(
                f"{source.label}: lacks the tensor {missing[0]!r} ({len(missing)} such in all), "
                "which its configuration speaks of; fetch the files again, or correct the "
                "configuration."
            )


def parts_of(c: DecoderConfig, index: int) -> list[str]:
    parts = ["attention_norm", "ffn_norm", *ATTENTION]
    parts += FEED_FORWARD if c.mixture_of(index) is None else ()
    parts += ("q_norm", "k_norm") if c.head_norms else ()
    parts += ("attention_post_norm", "ffn_post_norm") if c.post_norms else ()
    return [part for part in parts if part != "v" or not c.layers[index].shared]


def find_root(source: Source, usual: str) -> str:
    stem = f"{PUBLISHED['embedding']}.weight"
    return next((root for root in _ROOTS if f"{root}{stem}" in source.names), usual)
