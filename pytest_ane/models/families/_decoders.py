"""The families that the decoder core computes, each by the keys and names of its files.

`llama`: RMSNorm, RoPE, grouped queries, SwiGLU. Llama 1 to 3.3, SmolLM 1 and 2, TinyLlama.
`smollm3`: a Llama of which every fourth layer does not turn.
`mistral`: a Llama all of whose layers may have a window. Mistral 7B and what is like it.
`mixtral`: a Mistral of whose experts each position chooses two.
`phi3`: fused projections, part of a head turns, LongRoPE. Phi-3, 3.5 and 4.
`qwen2`: queries, keys and values have biases; later layers may have a window. Qwen2 and 2.5.
`qwen3`: heads' queries and keys are normed before they turn; also its embedding models.
`qwen3_moe`: sparse layers in place of some or all dense ones. 30B-A3B, 235B-A22B.
`qwen2_moe`: of one expert each position has its share. Qwen1.5 and Qwen2: A2.7B, 57B-A14B.
`gemma2`: norms on both sides, soft caps, every other layer with a window.
`gemma3`: five layers with a window and angles of their own to one that sees all; text alone.
`granite`: a Llama with multipliers. Granite 3 and 4, dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Mixture,
    Settings,
    biases,
    layers_of,
    plain,
)
from pytest_ane.models.families.decoder._config import Names
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import architecture_of


def _llama(s: Settings, positions: int) -> DecoderConfig:
    return replace(plain(s, positions), biases=biases(s))


LLAMA = DecoderFamily("llama", _llama, paired=True, revision=3)


def _smollm3(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions, theta=2e6)
    count = len(config.layers)
    interval = s.count("no_rope_layer_interval", 4)
    told = s.layers("no_rope_layers", {"1": 0, "0": None})
    turned = told or tuple(0 if (i + 1) % interval else None for i in range(count))
    kinds = ["full_attention" if r == 0 else "sliding_attention" for r in turned]
    windows = s.windows(kinds, s.switched_window(default=None))
    return replace(config, layers=layers_of(windows, turned), biases=biases(s))


SMOLLM3 = DecoderFamily("smollm3", _smollm3, paired=True, tied=True)


def _windowed(s: Settings, positions: int, window: int | None = None, **told: Any) -> DecoderConfig:
    """All layers have the window of the file, or this one where `config.json` mentions none."""
    config, window = plain(s, positions, **told), s.window(default=s.published(window))
    return replace(config, layers=layers_of([window] * len(config.layers)))


# GGUF files of Mistral say that they are of llama's architecture, and have no window.
MISTRAL = DecoderFamily(
    "mistral", partial(_windowed, window=4096), architectures=("llama",), paired=True
)


def _mixtral(s: Settings, positions: int) -> DecoderConfig:
    config = _windowed(s, positions, theta=1e6)
    return replace(
        config,
        layers=tuple(replace(layer, sparse=True) for layer in config.layers),
        mixture=Mixture(
            experts=s.count("num_local_experts", s.published(8)),
            top=s.count("num_experts_per_tok", s.published(2)),
            ffn=config.ffn,
        ),
    )


# GGUF files of Mixtral say that they are of llama's architecture.
MIXTRAL = DecoderFamily(
    "mixtral",
    _mixtral,
    architectures=("llama",),
    paired=True,
    defaults={"rms_norm_eps": 1e-5},
    names={
        "router": "block_sparse_moe.gate",
        "expert_gate": "block_sparse_moe.experts.{}.w1",
        "expert_up": "block_sparse_moe.experts.{}.w3",
        "expert_down": "block_sparse_moe.experts.{}.w2",
    },
)


_QKV, _GATED = ("q", "k", "v"), ("gate", "up")


PHI3 = DecoderFamily(
    "phi3",
    partial(_windowed, partial=1.0),
    names=dict.fromkeys(_QKV, "self_attn.qkv_proj") | dict.fromkeys(_GATED, "mlp.gate_up_proj"),
    gguf_names=dict.fromkeys(_QKV, "attn_qkv") | dict.fromkeys(_GATED, "ffn_up"),
    fused=(_QKV, _GATED),
    defaults={"rms_norm_eps": 1e-5}
    | dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), 4096),
)


_FIRST_WITH_WINDOW = 28
"""The first layer with a window, where the configuration does not tell (`Qwen2Config`)."""


def _window_layers(s: Settings) -> int:
    key = "max_window_layers"
    return 0 if s.get(key) == 0 else s.count(key, _FIRST_WITH_WINDOW)


def _qwen_windows(s: Settings, layers: int) -> list[int | None]:
    first = _window_layers(s)
    kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return s.windows(kinds, s.switched_window(default=4096))


def _qwen2(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    layers = layers_of(_qwen_windows(s, len(config.layers)))
    return replace(config, layers=layers, biases=("q", "k", "v"))


QWEN2 = DecoderFamily("qwen2", _qwen2)


def _qwen3(s: Settings, positions: int, head: int | None = 128) -> DecoderConfig:
    config = plain(s, positions, head=head)
    return replace(
        config,
        layers=layers_of(_qwen_windows(s, len(config.layers))),
        biases=biases(s, ffn=False),
        head_norms=True,
    )


QWEN3 = DecoderFamily("qwen3", _qwen3)


_QWEN_NAMES = {
    "router": "mlp.gate",
    "expert_gate": "mlp.experts.{}.gate_proj",
    "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
}


def _mixed(s: Settings, config: DecoderConfig, mixture: Mixture) -> DecoderConfig:
    step, dense = s.count("decoder_sparse_step", 1), s.get("mlp_only_layers", [])
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(len(config.layers))]
    # One of two names, by the version of transformers that saved it.
    local = s.get("num_local_experts")
    experts = s.count("num_local_experts" if local else "num_experts", s.published(mixture.experts))
    if local and s.get("num_experts") is not None:
        s.only("num_experts", experts)
    return replace(
        config,
        layers=tuple(replace(w, sparse=s) for w, s in zip(config.layers, sparse, strict=True)),
        mixture=replace(
            mixture,
            experts=experts,
            top=s.count("num_experts_per_tok", s.published(mixture.top)),
            ffn=s.count("moe_intermediate_size", s.published(mixture.ffn)),
            # llama.cpp has it by the architecture, whatever the model was trained with.
            normalized=mixture.normalized if s.is_gguf else s.flag("norm_topk_prob"),
        ),
    )


def _qwen3_moe(s: Settings, positions: int) -> DecoderConfig:
    config = _qwen3(s, positions, head=None)
    # All layers have the window, where Qwen3's have one from `max_window_layers` on.
    layers = layers_of([s.switched_window(default=4096)] * len(config.layers))
    return _mixed(s, replace(config, layers=layers), Mixture(experts=128, top=8, ffn=768))


QWEN3_MOE = DecoderFamily("qwen3_moe", _qwen3_moe, architectures=("qwen3moe",), names=_QWEN_NAMES)


def _qwen2_moe(s: Settings, positions: int) -> DecoderConfig:
    config = plain(s, positions)
    window, first = s.switched_window(default=4096), _window_layers(s)
    kinds = [
        "sliding_attention" if i % 2 == 0 and i < first else "full_attention"
        for i in range(len(config.layers))
    ]
    config = replace(
        config,
        layers=layers_of(s.windows(kinds, window)),
        biases=("q", "k", "v") if s.flag("qkv_bias", True) else (),
    )
    shared = s.count("shared_expert_intermediate_size", config.ffn if s.is_gguf else 5632)
    sizes = Mixture(experts=60, top=4, ffn=1408, normalized=False, shared=shared)
    return _mixed(s, config, sizes)


QWEN2_MOE = DecoderFamily(
    "qwen2_moe",
    _qwen2_moe,
    architectures=("qwen2moe",),
    names=_QWEN_NAMES
    | {f"shared_{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
    | {"shared_router": "mlp.shared_expert_gate"},
)


_LARGEST_GEMMAS = (46, 62)
"""Layers of Gemma 2 and 3 27B."""
_LAYER_TYPES = ("full_attention", "sliding_attention")
GEMMA_NAMES = {
    "attention_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}


def _sandwiched(s: Settings, positions: int, theta: float | None) -> DecoderConfig:
    config = plain(s, positions, theta=theta, head=256, activation="gelu_pytorch_tanh")
    # Of GGUF as llama.cpp has it, an even share in 27B (`llama_model_gemma2::load_arch_hparams`).
    largest = len(config.layers) in _LARGEST_GEMMAS
    own: float = config.width / config.heads if largest else config.head
    square = own if s.is_gguf else s.real("query_pre_attn_scalar", 256)
    return replace(
        config,
        biases=biases(s, ffn=False),
        post_norms=True,
        scale=square**-0.5,
        embedding_scale=config.width**0.5,
    )


def _window_kinds(s: Settings, layers: int, period: int) -> Sequence[str]:
    """What each layer is, where `layer_types` does not tell: the last of a period sees all."""
    if isinstance(s.get("sliding_window_pattern"), list):
        known = {str(value): _LAYER_TYPES[bool(value)] for value in (True, False, 1, 0)}
        return s.layers("sliding_window_pattern", known) or ()
    period = s.count("sliding_window_pattern", period)
    return [_LAYER_TYPES[(i + 1) % period > 0] for i in range(layers)]


def _gemma2(s: Settings, positions: int) -> DecoderConfig:
    config = _sandwiched(s, positions, 10_000.0)
    if not s.is_gguf:
        s.only("sliding_window_pattern", 2)
    by_kind = _window_kinds(s, len(config.layers), 2)
    return replace(
        config,
        layers=layers_of(s.windows(by_kind, s.window(default=4096))),
        score_cap=s.cap("attn_logit_softcapping", 50.0),
        logit_cap=s.cap("final_logit_softcapping", 30.0),
    )


GEMMA2 = DecoderFamily("gemma2", _gemma2, names=GEMMA_NAMES, norm_offset=1.0, tied=True, revision=2)


_STREAM_SCALE = 2.0**-5
"""Hidden states of the 270M model reach 104,000, and fp16 ends at 65,504."""


def _gemma3(s: Settings, positions: int) -> DecoderConfig:
    config = _sandwiched(s, positions, None)
    by_kind = _window_kinds(s, len(config.layers), 6)
    # llama.cpp lets all layers of a file without a window see everything.
    windows = s.windows(by_kind, s.window(default=s.published(4096)))
    far = s.rotary(config.head, positions, theta=1e6, layer_type="full_attention")
    near = s.rotary(
        config.head,
        positions,
        theta=1e4,
        layer_type="sliding_attention",
        theta_key="rope_local_base_freq",
        scaled=False,
    )
    return replace(
        config,
        head_norms=True,
        stream_scale=_STREAM_SCALE,
        layers=layers_of(windows, [0 if window is None else 1 for window in windows]),
        rotaries=(far, near),
        logit_cap=s.cap("final_logit_softcapping"),
    )


GEMMA3 = DecoderFamily(
    "gemma3",
    _gemma3,
    types=("gemma3_text", "gemma3"),
    architectures=("gemma3",),
    names=GEMMA_NAMES,
    norm_offset=1.0,
    tied=True,
    # Files of the models that also see images leave out what is as here.
    defaults={"num_attention_heads": 8, "vocab_size": 262_208},
    revision=2,
)


_HYBRID = "granitemoehybrid"
"""What Granite 4's dense models are by `model_type`: hybrids without recurrence and experts."""
_SHARED = dict.fromkeys(_GATED, "shared_mlp.input_linear") | {"down": "shared_mlp.output_linear"}


def _is_hybrid(source: Source) -> bool:
    return bool(architecture_of(source.value)[1] == _HYBRID)


def _granite(s: Settings, positions: int) -> DecoderConfig:
    config, hybrid = plain(s, positions), _is_hybrid(s.source)
    config = replace(
        config,
        biases=biases(s, ffn=not hybrid),
        scale=s.real("attention_multiplier", config.head**-0.5 if s.is_gguf else 1.0),
        embedding_scale=s.real("embedding_multiplier", 1.0),
        residual_scale=s.real("residual_multiplier", 1.0),
        logit_scale=1 / s.real("logits_scaling", 1.0),
    )
    if not hybrid:
        return config
    s.needed("layer_types")
    s.layers("layer_types", {"attention": None, "full_attention": None})
    if (experts := s.needed("num_local_experts")) != 0:
        s.refuse("num_local_experts", experts)
    turned = 0 if s.get("position_embedding_type") == "rope" else None
    layers = tuple(replace(layer, rotary=turned) for layer in config.layers)
    return replace(config, ffn=s.count("shared_intermediate_size"), layers=layers)


@dataclass(frozen=True)
class GraniteFamily(DecoderFamily):
    def _names(self, source: Source, settings: Settings) -> Names:
        names = super()._names(source, settings)
        if not _is_hybrid(source):
            return names
        return replace(names, parts={**names.parts, **_SHARED}, fused=(_GATED,))


GRANITE = GraniteFamily(
    "granite", _granite, types=("granite", _HYBRID), architectures=("granite",), paired=True
)


DECODERS = {it.name: it for it in list(globals().values()) if isinstance(it, DecoderFamily)}
"""By the names that manifests have."""
