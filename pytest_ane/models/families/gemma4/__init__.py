"""Gemma 4 with experts (26B-A4B): sliding and global attention, experts in eight packs a layer.

A layer is nine shards, `L00.attn` and the packs of experts `L00.p0` to `L00.p7`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import Cut, Port, Ports, Reference, Routing, Undecided, Wire
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import is_head
from pytest_ane.models.families._decoders import GEMMA_NAMES
from pytest_ane.models.families._layout import AneLayout, Rotary
from pytest_ane.models.families.decoder import (
    DecoderConfig,
    DecoderFamily,
    DecoderModel,
    Layer,
    Mixture,
    Settings,
    plain,
)
from pytest_ane.models.families.decoder._config import FREQUENCY_FACTORS
from pytest_ane.models.sources import Source, Spread
from pytest_ane.models.sources.base import MAX_LAYERS, whole

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.gemma4._forms import Weights
    from pytest_ane.models.reference.gemma4 import Gemma4Reference


PACKS = 8
"""Shards that a layer's experts are spread over, `p0` to `p7`."""

_PUBLISHED: Mapping[str, Any] = {
    "num_hidden_layers": 30,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "enable_moe_block": True,
    "moe_intermediate_size": 704,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_attention_heads": 16,
    "head_dim": 256,
    "num_key_value_heads": 8,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 1024,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 1_000_000.0,
            "partial_rotary_factor": 0.25,
        },
    },
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "vocab_size": 262_144,
}
"""Gemma-4-26B-A4B's `text_config`, for synthetic sources: docs/reference/families/gemma4.md."""

_SLIDING = {"full_attention": False, "sliding_attention": True}
_GGUF_SLIDING = {"False": False, "True": True, "0": False, "1": True}
_GGUF_KEYS: Mapping[str, str] = {
    "layer_types": "attention.sliding_window_pattern",
    "head_dim": "attention.key_length_swa",
    "v_head_dim": "attention.value_length_swa",
    "rotary_channels": "rope.dimension_count_swa",
    "global_head_dim": "attention.key_length",
    "global_v_head_dim": "attention.value_length",
    "global_rotary_channels": "rope.dimension_count",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_experts": "expert_count",
    "top_k_experts": "expert_used_count",
}
"""As `Gemma4Model` of llama.cpp's converter writes them; some have no key in `config.json`."""
_OWN_KEYS = {"head_dim", "num_key_value_heads"}
"""What `per_layer_config` may say of a layer."""


def _configure(s: Settings, positions: int) -> DecoderConfig:
    _check_variant(s)
    sliding = _sliding(s)
    near_heads, kv_heads = _key_heads(s, sliding) if s.is_gguf else (None, 0)
    config = plain(
        s, positions, theta=None, head=256, kv_heads=near_heads, activation="gelu_pytorch_tanh"
    )
    if s.is_gguf:
        head = s.count("global_head_dim")
        s.only("global_v_head_dim", head)
        # llama.cpp has values that are keys where a layer has no values.
        values = (f"blk.{i}.attn_v.weight" for i, slides in enumerate(sliding) if not slides)
        shared = not any(name in s.source.names for name in values)
    else:
        shared = s.flag("attention_k_eq_v")
        head, kv_heads = _global_heads(s, config, sliding, shared)
    if config.heads % kv_heads or head % 2:
        raise SourceError(
            f"{s.source.label}: {config.heads} query heads over {kv_heads} key heads of {head} "
            "channels do not divide."
        )
    near = Layer(0, s.count("sliding_window"))
    far = Layer(1, head=head, kv_heads=kv_heads, shared=shared)
    return replace(
        config,
        layers=tuple(near if slides else far for slides in sliding),
        rotaries=_rotaries(s, config.head, head, positions),
        scale=1.0,
        head_norms=True,
        value_norms=True,
        post_norms=True,
        mixture=_mixture(s),
        embedding_scale=config.width**0.5,
        # What llama.cpp takes where its file has none.
        logit_cap=s.cap("final_logit_softcapping", 30.0 if s.is_gguf else None),
    )


def own_experts(config: DecoderConfig, pack: int) -> range:
    """Numbers of a pack's experts."""
    assert config.mixture is not None
    each = config.mixture.experts // PACKS
    return range(pack * each, pack * each + each)


def _check_variant(s: Settings) -> None:
    """Of a file that leaves them out, what transformers takes is another model."""
    if s.is_gguf:
        for key in ("head_dim", "num_experts", "rope_local_base_freq"):
            s.needed(key)
    elif not s.flag("enable_moe_block"):
        s.refuse("enable_moe_block", False)
    if (channels := s.needed("hidden_size_per_layer_input")) != 0:
        s.refuse("hidden_size_per_layer_input", channels)
    if (layers := s.get("num_kv_shared_layers", 0)) != 0:
        s.refuse("num_kv_shared_layers", layers)
    # Text is causal where the tokens of an image see one another.
    if s.get("use_bidirectional_attention") not in (None, "vision"):
        s.refuse("use_bidirectional_attention", s.get("use_bidirectional_attention"))


def _sliding(s: Settings) -> list[bool]:
    """Of each layer; of `config.json` the last is global, as transformers has it."""
    if s.is_gguf:
        s.needed("layer_types")
        return list(s.layers("layer_types", _GGUF_SLIDING) or ())
    count = s.count("num_hidden_layers", most=MAX_LAYERS)
    told = s.layers("layer_types", _SLIDING)
    return [*(told or [i % 6 < 5 for i in range(count)])[:-1], False]


def _key_heads(s: Settings, sliding: Sequence[bool]) -> tuple[int, int]:
    by_layer = s.by_layer("num_key_value_heads")
    near, far = (
        {count for count, slides in zip(by_layer, sliding, strict=True) if slides is kind}
        for kind in (True, False)
    )
    if len(near) > 1 or len(far) > 1:
        s.refuse("num_key_value_heads", by_layer)
    # A kind that no layer is of may have any.
    return min(near or by_layer), min(far or by_layer)


def _rotaries(s: Settings, near: int, far: int, positions: int) -> tuple[Rotary, Rotary]:
    """The angles of sliding layers and of global ones, whose heads have so many channels."""
    if not s.is_gguf:
        s.needed("rope_parameters")
        return (
            s.rotary(near, positions, layer_type="sliding_attention"),
            s.rotary(far, positions, partial=1.0, layer_type="full_attention"),
        )
    s.only("rotary_channels", near)
    s.only("global_rotary_channels", far)
    if FREQUENCY_FACTORS not in s.source.names:
        raise SourceError(
            f"{s.source.label}: lacks the tensor {FREQUENCY_FACTORS!r}, by which its global layers "
            "turn; fetch the file again."
        )
    return (
        s.rotary(near, positions, theta_key="rope_local_base_freq", scaled=False),
        s.with_factors(s.rotary(far, positions, scaled=False)),
    )


def _global_heads(
    s: Settings, config: DecoderConfig, sliding: Sequence[bool], shared: bool
) -> tuple[int, int]:
    """Channels of a head, and key heads, of global layers: at two places, by who saved the file."""
    own = s.get("per_layer_config")
    if own is None:
        heads = s.count("num_global_key_value_heads", config.kv_heads)
        return s.count("global_head_dim", 512), heads if shared else config.kv_heads
    if isinstance(own, Mapping):
        last = own.get(str(len(sliding) - 1), {})
        expected = [{} if slides else last for slides in sliding]
        alike = [own.get(str(i), {}) for i in range(len(sliding))] == expected
        if alike and isinstance(last, Mapping) and last.keys() <= _OWN_KEYS:
            what = s.what("per_layer_config")
            told = {key: whole(value, what) for key, value in last.items() if value is not None}
            return told.get("head_dim", config.head), told.get(
                "num_key_value_heads", config.kv_heads
            )
    s.refuse("per_layer_config", own)


def _mixture(s: Settings) -> Mixture:
    mixture = Mixture(
        s.count("num_experts"), s.count("top_k_experts"), s.count("moe_intermediate_size")
    )
    if mixture.experts % PACKS or mixture.top > mixture.experts:
        raise SourceError(
            f"{s.source.label}: {mixture.experts} experts, {mixture.top} chosen; they are cut into "
            f"{PACKS} packs of one size."
        )
    return mixture


_ID = re.compile(r"L(\d{1,4})\.(?:attn|p([0-7]))")
_LAST = PACKS - 1


class _Part(NamedTuple):
    """What a layer's shard computes, in running order: attention, of pack -1, and the packs."""

    layer: int
    pack: int

    @property
    def combines(self) -> bool:
        return self.pack == _LAST


def _part(shard: str) -> _Part:
    match = _ID.fullmatch(shard)
    if match is None:
        raise ManifestError(
            f"Family 'gemma4' has no shard {shard!r}; there are L00.attn, L00.p0 to L00.p{_LAST} "
            "for every layer, and vocabulary slices of the head head.0, head.1, ..."
        )
    return _Part(int(match[1]), int(match[2] or -1))


def _pack_of(shard: str) -> _Part | None:
    return None if is_head(shard) or _part(shard).pack < 0 else _part(shard)


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """The shards in running order. Packs sum into the stream `moe`, which the last one takes."""
    parts = sorted((shard for shard in shards if not is_head(shard)), key=_part)
    return (*map(_wire, parts), *blocks.wiring([*filter(is_head, shards)], "gemma4"))


def _wire(shard: str) -> Wire:
    of = _part(shard)
    if of.pack < 0:
        return Wire(shard, kind="attention")
    if of.combines:
        return Wire(shard, takes=("x", "moe"), kind="last pack")
    return Wire(shard, gives="moe", mode="add" if of.pack else "set", kind="pack")


def layer_shards(layer: int) -> tuple[str, ...]:
    """Ids of a layer's shards, in running order."""
    return (f"L{layer:02d}.attn", *(f"L{layer:02d}.p{pack}" for pack in range(PACKS)))


def starts_whole(shards: Sequence[str]) -> bool:
    """Whether no shard is missing before the last of these; before the head, none of a layer."""
    parts = sorted(_part(shard) for shard in shards if not is_head(shard))
    layers, rest = divmod(len(parts), 1 + PACKS)
    prefix = [_part(shard) for i in range(layers + 1) for shard in layer_shards(i)]
    return parts == prefix[: len(parts)] and not (rest and any(map(is_head, shards)))


class Gemma4Model(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    exact: Gemma4Reference
    dtype: npt.DTypeLike = np.float16
    """Of packs and heads, which are large, as they are converted."""

    @property
    def missing(self) -> Sequence[str]:
        """Shards of the layers that the cut leaves out."""
        listed = {_part(shard) for shard in self.shards if not is_head(shard)}
        every = (s for i in range(len(self.config.layers)) for s in layer_shards(i))
        return [shard for shard in every if _part(shard) not in listed]

    def layout(self, shard: str) -> AneLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.config, shard)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        if is_head(shard):
            return super().reference(shard)
        if (of := _pack_of(shard)) is None:
            return self.exact.attention(self.index(shard))
        run = self.exact.last_pack if of.combines else self.exact.pack
        return run(of.layer, own_experts(self.config, of.pack))

    def residual(self, shard: str) -> Reference | None:
        """What enters attention; what enters the last pack, times the layer's scalar."""
        if (of := _pack_of(shard)) is None:
            return None if is_head(shard) else list
        return self.exact.path(of.layer) if of.combines else None

    def routed(self, shard: str) -> Routing | None:
        """Which of a pack's own experts are among the chosen."""
        of = _pack_of(shard)
        return of and self.exact.routed(of.layer, own_experts(self.config, of.pack))

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which of a pack's own experts are among the chosen."""
        of = _pack_of(shard)
        return of and self.exact.undecided(of.layer, own_experts(self.config, of.pack))

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if _pack_of(shard) is None:
            return super().ports(shard)
        x = Port("x", (1, self.layout(shard).width, "T", 1))
        return Ports((x,), (Port("y", (1, self.config.width, "T", 1)),))

    def index(self, shard: str) -> int:
        """Number of the layer that a shard is of."""
        return _part(shard).layer

    def _module(self, shard: str) -> nn.Module:
        from pytest_ane.models.families.decoder._forms import StatefulAttention
        from pytest_ane.models.families.gemma4._forms import AneCombiner, AnePack

        if is_head(shard):
            return super()._module(shard)
        c, index, of = self.config, self.index(shard), _pack_of(shard)
        if of is None:
            return StatefulAttention(c, index, self.weights.attention(index))
        weights = self._weights(self.dtype)
        pack = AnePack(c, weights.router(index), weights.banks(*of), of.pack)
        return AneCombiner(c, pack, weights.combiner(index)) if of.combines else pack

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.models.families.gemma4._forms import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    """A shard's layout; the last pack takes the sum of the others below the hidden states."""
    if (of := _pack_of(shard)) is None:
        return config.head_layout if is_head(shard) else config.layout(_part(shard).layer)
    return AneLayout(config.family, 2 * config.width if of.combines else config.width)


_OWN = {
    "layer_scalar": "layer_output_scale.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
"""Tensors of a layer besides the decoder core's, and their names in GGUF (`Gemma4Model`)."""


class Gemma4Family(DecoderFamily):
    """Layers of nine shards in place of blocks; attention always keeps states."""

    def open_model(self, source: Source, cut: Cut) -> Gemma4Model:
        """As `Family.open_model`; attention always keeps states."""
        cut = replace(cut, stateful=True)
        ids = [wire.shard for wire in wiring(cut.shards)]
        config, names = self.read(source, cut, blocks.slices(ids))
        layers = [shard for shard in ids if not is_head(shard)]
        blocks.check_depth(source.label, layers, len(config.layers), lambda s: _part(s).layer)
        return Gemma4Model(source, config, names, cut, self.exact(source))

    def opened(self, source: Source) -> Gemma4Reference:
        """Transformers' model, whose layers are run in part."""
        from pytest_ane.models.reference.gemma4 import Gemma4Reference

        return Gemma4Reference(source, self.usual(source))

    def layout(self, description: dict[str, Any], shard: str) -> AneLayout:
        """A shard's layout from `Gemma4Model.description`, without the weights."""
        return layout(DecoderConfig.from_description(description), shard)

    wiring = staticmethod(wiring)
    starts_whole = staticmethod(starts_whole)

    def spread(self, name: str, shape: tuple[int, ...]) -> Spread:
        """Distributions under which synthetic activations keep realistic magnitudes.

        Matrices keep the variance of what enters; a block adds about a tenth of the stream; scores
        have a variance near 1. What does nothing at 1 is not 1: a layer's scalar is about 0.7, an
        eighth of the experts' scales is 0, some are negative. Logits reach the soft cap of 30.
        """
        width = shape[-1] if shape else 1
        if name.endswith("layer_scalar"):
            return Spread(std=0.05, mean=0.7)
        if name.endswith("per_expert_scale"):
            return Spread(std=0.6, mean=0.7, zeros=0.125)
        if name == f"{self.root}norm.weight":
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
        return Spread.with_outliers(width**-0.5, outliers=0.03)


FAMILY = Gemma4Family(
    "gemma4",
    _configure,
    types=("gemma4_text", "gemma4"),
    architectures=("gemma4",),
    names=GEMMA_NAMES,
    gguf_keys=_GGUF_KEYS,
    tied=True,
    root="model.language_model.",
    own=_OWN,
    synthetic=_PUBLISHED,
    revision=3,
)
