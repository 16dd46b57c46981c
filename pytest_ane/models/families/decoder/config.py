"""What a decoder is made of: dimensions, and the parts that families choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, Literal

from pytest_ane.models.families.layout import AneLayout, Rotary

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
    """Experts of a sparse layer, of which each position chooses some.

    Attributes:
        experts: of a layer.
        top: as many as are chosen, those of the largest logits.
        ffn: inner channels of an expert.
        normalized: whether the shares of the chosen ones sum to 1; else they are of all experts.
        shared: inner channels of an expert that all positions have besides, weighed by a sigmoid of
            its own; None for none.
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
        family: named in errors.
        width: channels of a hidden state.
        heads: query heads; `kv_heads` of them share keys and values in groups.
        head: channels of one head.
        epsilon: of all norms.
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
        slices: vocabulary slices of the head.
        max_tokens: the largest T of a call.
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
        """How hidden states enter and leave a layer."""
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
        """How hidden states enter a head slice."""
        return AneLayout(self.family, self.width, entry_scale=self.stream_scale)

    @property
    def stream_epsilon(self) -> float:
        """Of norms over the ANE form's hidden states, which leaves what they give unchanged."""
        return self.epsilon * self.stream_scale**2

    def heads_of(self, index: int) -> tuple[int, int]:
        """Channels of a head, and key heads, of a layer."""
        layer = self.layers[index]
        return layer.head or self.head, layer.kv_heads or self.kv_heads

    def mixture_of(self, index: int) -> Mixture | None:
        """A layer's experts, if it has any."""
        return self.mixture if self.layers[index].sparse else None

    def slots(self, index: int) -> int | None:
        """Positions that a layer's state holds; None where it keeps none.

        Of a window those that the first row of the longest call sees, and the call's own.
        """
        window = self.layers[index].window
        if self.context is None or window is None:
            return self.context
        ring = ceil((window - 1 + self.max_tokens) / _STATE_STEP) * _STATE_STEP
        return min(self.context, ring)

    @property
    def description(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> DecoderConfig:
        """Of `description`, which may have gone through JSON."""
        rotaries, mixture = description["rotaries"], description["mixture"]
        parts = {
            "layers": tuple(Layer(**layer) for layer in description["layers"]),
            "rotaries": tuple(Rotary(tuple(r["frequencies"]), r["factor"]) for r in rotaries),
            "biases": tuple(description["biases"]),
            "mixture": None if mixture is None else Mixture(**mixture),
        }
        return cls(**{**description, **parts})
