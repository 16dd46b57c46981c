"""What the configurations of llama-like families share."""

from __future__ import annotations

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families.decoder.config import Activation, DecoderConfig
from pytest_ane.models.families.decoder.names import ATTENTION, FEED_FORWARD, GGUF, LINEAR
from pytest_ane.models.families.decoder.settings import Settings, layers_of
from pytest_ane.models.sources.settings import MAX_LAYERS


def plain(
    s: Settings,
    positions: int,
    *,
    theta: float | None = 10_000.0,
    head: int | None = None,
    kv_heads: int | None = None,
    activation: Activation = "silu",
    partial: float | None = None,
) -> DecoderConfig:
    """What llama-like configurations share; families replace what is theirs.

    Args:
        s: the configuration.
        positions: as many as the shards take.
        theta: RoPE's base where the configuration has none; None where the family reads RoPE.
        head: channels of a head where it does not tell; an even share where None.
        kv_heads: key heads, where the family reads them by layer.
        activation: the only one that is computed.
        partial: share of a head that turns where it does not tell; None where all must.

    Raises:
        SourceError: sizes that do not fit one another, or another activation.
    """
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    kv_heads = kv_heads or s.count("num_key_value_heads", heads)
    share = s.published(head) or (width // heads if width % heads == 0 else None)
    head = s.count("head_dim", share)
    if heads % kv_heads or head % 2:
        raise SourceError(
            f"{s.source.label}: {heads} query heads, {kv_heads} key heads and {head} channels of a "
            "head do not divide one another."
        )
    s.only("v_head_dim", head)
    # Gemma's key, and everybody else's; either takes no notice of the other.
    s.only("hidden_act" if activation == "silu" else "hidden_activation", activation)
    turned = () if theta is None else (s.rotary(head, positions, theta=theta, partial=partial),)
    return DecoderConfig(
        family=s.family,
        width=width,
        ffn=s.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        vocabulary=s.vocabulary(),
        epsilon=s.real("rms_norm_eps", s.published(1e-6)),
        scale=head**-0.5,
        activation=activation,
        layers=layers_of([None] * s.count("num_hidden_layers", most=MAX_LAYERS)),
        rotaries=turned,
    )


def biases(s: Settings, *, ffn: bool = True) -> tuple[str, ...]:
    """Projections with a bias: by `attention_bias` and `mlp_bias`, or those of a GGUF file.

    Args:
        s: the configuration.
        ffn: whether the network may have biases, not attention alone.
    """
    if s.is_gguf:
        parts = LINEAR if ffn else ATTENTION
        return tuple(part for part in parts if f"blk.0.{GGUF[part]}.bias" in s.source.names)
    attention = ATTENTION if s.flag("attention_bias") else ()
    return (*attention, *(FEED_FORWARD if ffn and s.flag("mlp_bias") else ()))
