"""VaultGemma, as a family of one's own: Gemma 2 without norms after attention and network."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    Settings,
    layers_of,
    plain,
)


def configure(s: Settings, positions: int) -> DecoderConfig:
    """Whatever of `config.json` is read here is honoured; the rest is refused if it matters."""
    config = plain(s, positions, head=256, activation="gelu_pytorch_tanh")
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(len(config.layers))]
    return replace(
        config,
        biases=("q", "k", "v", "o") if s.flag("attention_bias") else (),
        layers=layers_of(s.windows(kinds, s.window(default=4096))),
        scale=s.real("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=s.cap("attn_logit_softcapping", 50.0),
        logit_cap=s.cap("final_logit_softcapping", 30.0),
        embedding_scale=config.width**0.5,
    )


FAMILY = DecoderFamily(
    "vault_gemma",
    configure,
    types=("vaultgemma",),
    names={"ffn_norm": "pre_feedforward_layernorm"},
    norm_offset=1.0,
    tied=True,
    reference="transformers.VaultGemmaForCausalLM",
)
