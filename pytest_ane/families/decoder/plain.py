"""What the configurations of llama-like families share."""

from __future__ import annotations

from pytest_ane.core.errors import SourceError
from pytest_ane.families.decoder.config import Activation, DecoderConfig
from pytest_ane.families.decoder.settings import Settings, layers_of
from pytest_ane.sources.settings import MAX_LAYERS


def plain(
    s: Settings,
    positions: int,
    *,
    theta: float | None = 10_000.0,
    head: int | None = None,
    activation: Activation = "silu",
    partial: bool = False,
) -> DecoderConfig:
    """What llama-like configurations share; families replace what is theirs.

    Args:
        s: the configuration.
        positions: as many as the shards take.
        theta: RoPE's base where the configuration has none; None where the family reads RoPE.
        head: channels of a head where it does not tell; an even share where None.
        activation: the only one that is computed.
        partial: whether a share of a head may turn.

    Raises:
        SourceError: sizes that do not fit one another, or another activation.
    """
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    kv_heads = s.count("num_key_value_heads", heads)
    share = head or (width // heads if width % heads == 0 else None)
    head = s.count("head_dim", share)
    if heads % kv_heads or head % 2:
        raise SourceError(
            f"{s.source.label}: {heads} query heads, {kv_heads} key heads and {head} channels of a "
            "head do not divide one another."
        )
    s.only("v_head_dim", head)
    s.only("hidden_activation" if s.get("hidden_activation") else "hidden_act", activation)
    turned = () if theta is None else (s.rotary(head, positions, theta=theta, partial=partial),)
    return DecoderConfig(
        family=s.family,
        width=width,
        ffn=s.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        vocabulary=s.vocabulary(),
        epsilon=s.real("rms_norm_eps", 1e-6),
        scale=head**-0.5,
        activation=activation,
        layers=layers_of([None] * s.count("num_hidden_layers", most=MAX_LAYERS)),
        rotaries=turned,
    )


def biases(s: Settings) -> tuple[str, ...]:
    """Projections that `attention_bias` and `mlp_bias` give a bias."""
    attention = ("q", "k", "v", "o") if s.flag("attention_bias") else ()
    return (*attention, *(("gate", "up", "down") if s.flag("mlp_bias") else ()))
