"""ZAYA1 (Zyphra): compressed convolutional attention and mixtures of experts, in alternation.

The first release, which Zyphra keeps as ZAYA1-8B-legacy, has 80 layers, each with the residual
scales that stand before it. transformers folds an attention and the mixture after it into one
layer, with the scales that stand behind each (`convert_zaya_weights_to_hf.py` of its pull request
45862). What is asked for here is by the first release's names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import Branch, Cut, Port, Ports, Reference, Routing, Undecided, Wire
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import block_index, is_head, starts_whole
from pytest_ane.models.families._layout import AneLayout, Rotary
from pytest_ane.models.families.decoder import DecoderConfig, DecoderModel, Layer, Mixture, Settings
from pytest_ane.models.families.decoder._config import PUBLISHED, Names, Parts
from pytest_ane.models.families.decoder._model import layout as decoder_layout
from pytest_ane.models.sources import Source, Spread
from pytest_ane.models.sources.base import MAX_DIMENSION, MAX_LAYERS, check_names, positive, whole

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.zaya._forms import ZayaWeights
    from pytest_ane.models.reference.zaya import ZayaReference


__all__ = ["VERSION", "ZayaModel", "layout", "open_model", "spread", "starts_whole", "wiring"]


_FOLDED: Parts = {
    "self_attn.qkv.linear_q.weight": "self_attn.qkv_proj.q_proj.weight",
    "self_attn.qkv.linear_k.weight": "self_attn.qkv_proj.k_proj.weight",
    "self_attn.qkv.val_proj1.weight": "self_attn.qkv_proj.v_proj_current.weight",
    "self_attn.qkv.val_proj2.weight": "self_attn.qkv_proj.v_proj_delayed.weight",
    "self_attn.qkv.conv_qk.0.weight": "self_attn.qkv_proj.conv_qk_depthwise.weight",
    "self_attn.qkv.conv_qk.0.bias": "self_attn.qkv_proj.conv_qk_depthwise.bias",
    "self_attn.qkv.conv_qk.1.weight": "self_attn.qkv_proj.conv_qk_grouped.weight",
    "self_attn.qkv.conv_qk.1.bias": "self_attn.qkv_proj.conv_qk_grouped.bias",
    "self_attn.qkv.temp": "self_attn.qk_norm.temp",
    "self_attn.o_proj.weight": "self_attn.o_proj.weight",
    "zaya_block.router.down_proj.weight": "mlp.gate.down_proj.weight",
    "zaya_block.router.down_proj.bias": "mlp.gate.down_proj.bias",
    "zaya_block.router.rmsnorm_eda.weight": "mlp.gate.router_mlp.norm.weight",
    "zaya_block.router.router_mlp.0.weight": "mlp.gate.router_mlp.fc1.weight",
    "zaya_block.router.router_mlp.0.bias": "mlp.gate.router_mlp.fc1.bias",
    "zaya_block.router.router_mlp.2.weight": "mlp.gate.router_mlp.fc2.weight",
    "zaya_block.router.router_mlp.2.bias": "mlp.gate.router_mlp.fc2.bias",
    "zaya_block.router.router_mlp.4.weight": "mlp.gate.router_mlp.out_proj.weight",
    "zaya_block.router.balancing_biases": "mlp.gate.balancing_biases",
    "zaya_block.router.router_states_scale": "mlp.gate.router_states_scale",
    "zaya_block.experts.local_experts.{}.linear_fc1.weight": "mlp.experts.gate_up_proj",
    "zaya_block.experts.local_experts.{}.linear_fc2.weight": "mlp.experts.down_proj",
}
"""A layer's tensors, norms and residual scales apart, as both call them; `{}` is an expert."""

_SCALES = r"(hidden_states|residual)_(scale|bias)"
_HINT = (
    "It reads the names of transformers, and those of the first release, which Zyphra keeps as "
    "ZAYA1-8B-legacy."
)


class ZayaNames(Names):
    @classmethod
    def find(cls, source: Source) -> ZayaNames:
        """The names of a source; a synthetic one has the first release's."""
        if "model.norm.weight" in source.names:
            names = cls(PUBLISHED, "model.", own=_FOLDED)
            scales = rf"post_(attention|mlp)_residual_scale\.{_SCALES}"
            ends = r"model\.input_hidden_states_(scale|bias)"
        else:
            parts = {"norm": "final_norm", "attention_norm": "input_norm", "ffn_norm": "input_norm"}
            names = cls({**PUBLISHED, **parts}, "model.", own={name: name for name in _FOLDED})
            scales, ends = rf"res_scale\.{_SCALES}", rf"model\.res_scale\.{_SCALES}"
        norms = (f"{names.parts[part]}.weight" for part in ("attention_norm", "ffn_norm"))
        own = (re.escape(n).replace(r"\{\}", r"\d+") for n in (*names.own.values(), *norms))
        outside = (re.escape(names.whole(part)) for part in ("embedding", "norm", "head"))
        layer = rf"model\.layers\.\d+\.({'|'.join([*own, scales])})"
        known = re.compile("|".join([*outside, ends, layer]))
        check_names(source.label, "zaya", source.names, known, _HINT)
        return names

    @property
    def folded(self) -> bool:
        """Whether they are transformers', which has a layer's experts in one tensor."""
        return self.parts == PUBLISHED

    def layer(self, index: int) -> str:
        return f"model.layers.{index // 2 if self.folded else index}."

    def before(self, index: int, name: str, *, end: bool = False) -> str:
        """The residual scales that stand before a layer; the `end` is the one past the last."""
        if not self.folded:
            return f"{'model.' if end else self.layer(index)}res_scale.{name}"
        if index == 0:
            return f"model.input_{name}"
        behind = "mlp" if index % 2 == 0 else "attention"
        return f"{self.layer(index - 1)}post_{behind}_residual_scale.{name}"

    def expert(self, index: int, number: int, part: str) -> str:
        name = self.own_of(index, f"zaya_block.experts.local_experts.{{}}.{part}.weight")
        return name.replace("{}", str(number))


_OUTLIERS = 0.03
_OVERFLOWING = tuple(f"layers.{i}.self_attn.qkv.conv_qk.0.bias" for i in (0, 76, 78))
"""Of the layers of ZAYA1-8B whose first convolution overflows fp16."""

_SPREADS: Mapping[tuple[str, ...], Spread] = {
    ("linear_q.weight", "linear_k.weight"): Spread(1.0, outliers=_OUTLIERS),
    ("val_proj1.weight", "val_proj2.weight"): Spread(1.0, outliers=_OUTLIERS),
    ("linear_fc1.weight",): Spread(1.0, outliers=_OUTLIERS),
    ("linear_fc2.weight",): Spread(0.4, outliers=_OUTLIERS),
    ("o_proj.weight",): Spread(0.15, outliers=_OUTLIERS),
    ("conv_qk.0.weight", "conv_qk.1.weight"): Spread(0.7),
    # The likeliest of 17 slots has a weight of about a half.
    ("down_proj.weight",): Spread(1.0),
    ("router_mlp.0.weight", "router_mlp.2.weight"): Spread(1.7),
    ("router_mlp.4.weight",): Spread(2.0),
    ("temp", "norm.weight", "rmsnorm_eda.weight"): Spread(0.1, mean=1.0),
    ("hidden_states_scale",): Spread(0.1, mean=1.0),
    ("residual_scale",): Spread(0.02, mean=1.0),
    ("router_states_scale",): Spread(0.1, mean=0.5),
    ("hidden_states_bias", "residual_bias"): Spread(0.01),
    _OVERFLOWING: Spread(0.3, mean=6.0),
    ("balancing_biases", "bias"): Spread(0.05),
}
"""By the ends of names, the first that fits: of a vector its values, of a matrix what it gives for
states of RMS 1."""


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """How a tensor's synthetic values are distributed, by the end of its name.

    Activations keep a trained model's order: for states of RMS 1 a layer gives about a tenth of
    what the residual stream carries.
    """
    told = next((it for ends, it in _SPREADS.items() if name.endswith(ends)), None)
    if told is None:  # The embedding, and a head of its own.
        return Spread(0.1)
    deviation = told.std * math.prod(shape[1:]) ** -0.5
    return replace(Spread.with_outliers(deviation, told.outliers), mean=told.mean)


VERSION = "zaya/3"

_COUNTS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "layers": (80, ("num_hidden_layers",)),
    "width": (2048, ("hidden_size",)),
    "heads": (8, ("cca_num_q_heads", "num_attention_heads")),
    "kv_heads": (2, ("num_query_groups_list", "num_query_groups", "num_key_value_heads")),
    "head": (128, ("head_dim", "kv_channels")),
    "experts": (16, ("num_experts",)),
    "halves": (4096, ("ffn_hidden_size_list", "ffn_hidden_size")),
    "ffn": (2048, ("moe_intermediate_size",)),
    "router": (256, ("zaya_mlp_expansion", "router_hidden_size")),
    "vocabulary": (262_272, ("vocab_size",)),
}
"""ZAYA1-8B's value of each dimension, and the keys that give it, the telling one first."""

_ONLY: Mapping[str, Any] = {
    **dict.fromkeys(("gated_linear_unit", "scale_residual_merge"), True),
    **dict.fromkeys(("zaya_use_eda", "zaya_use_mod"), True),
    **dict.fromkeys(("add_bias_linear", "attention_bias", "clamp_temp", "lm_head_bias"), False),
    **dict.fromkeys(("rope_scaling", "swa_layers"), False),
    **dict.fromkeys(("cca_time0", "cca_time1"), 2),
    **dict.fromkeys(("moe_router_topk", "num_experts_per_tok"), 1),
    "hidden_act": "silu",
}
"""Settings that this family computes; another would be another model."""

_FULL, _SLIDING = "hybrid", "hybrid_sliding"
_THETAS = {_FULL: 5e6, _SLIDING: 1e4}
"""transformers' kinds of layers, and the base of their angles where nothing tells it."""


@dataclass(frozen=True)
class ZayaConfig(DecoderConfig):
    """Attention on even layers, experts on odd ones; `router` are the channels of its state."""

    variant: str = "published"
    router: int = 0

    @property
    def q_channels(self) -> int:
        return self.heads * self.head

    @property
    def kv_channels(self) -> int:
        return self.kv_heads * self.head

    @property
    def qk_channels(self) -> int:
        return self.q_channels + self.kv_channels

    @property
    def tail_channels(self) -> int:
        """Channels that a position leaves to the next ones: queries, keys, half of the values."""
        return self.qk_channels + self.kv_channels // 2

    @property
    def is_published(self) -> bool:
        return self.variant == "published"

    def enters(self, index: int) -> int:
        return self.leaves(index) if index > 1 else 0

    def leaves(self, index: int) -> int:
        return self.router if self.is_published and not is_attention(index) else 0

    def layout(self, index: int) -> AneLayout:
        """What the last positions leave to the next, `tail`, has no places as the cache has."""
        if not is_attention(index):
            return AneLayout(self.family, self.width + self.enters(index))
        return replace(super().layout(index), recurrent=("tail",))

    def state_shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        return {
            "kv_cache": (2 * self.kv_heads, 1, self.slots(index) or 0, self.head),
            "tail": (1, 1, 2, self.tail_channels),
        }

    @classmethod
    def read(cls, source: Source, slices: int, cut: Cut) -> tuple[ZayaConfig, ZayaNames]:
        """Dimensions and names; a synthetic source is ZAYA1-8B where it does not say otherwise."""
        s, names = Settings(source, "zaya", ("zaya",), ()), ZayaNames.find(source)
        for key, value in _ONLY.items():
            s.only(key, value)
        layers = _count(s, "layers") * (2 if names.folded else 1)
        heads, kv_heads, head = (_count(s, name) for name in ("heads", "kv_heads", "head"))
        halves = 2 * _count(s, "ffn") if names.folded else _count(s, "halves")
        if heads % kv_heads or head % 2 or halves % 2:
            raise SourceError(
                f"{source.label}: {heads} query heads, {kv_heads} key heads of {head} channels, "
                f"and {halves} channels of an expert's two halves do not divide evenly."
            )
        kinds, window = _kinds(s, names.folded, (layers + 1) // 2)
        order = list(dict.fromkeys(kinds))
        pairs = {
            kind: (Layer(i, window if kind == _SLIDING else None), Layer(None, sparse=True))
            for i, kind in enumerate(order)
        }
        config = cls(
            family="zaya",
            variant=cut.variant or "published",
            width=_count(s, "width"),
            ffn=halves // 2,
            heads=heads,
            kv_heads=kv_heads,
            head=head,
            router=_count(s, "router"),
            vocabulary=_count(s, "vocabulary"),
            epsilon=positive(*_value(s, 1e-5, ("norm_epsilon", "rms_norm_eps"))),
            scale=head**-0.5,
            layers=tuple(layer for kind in kinds for layer in pairs[kind])[:layers],
            rotaries=tuple(_rotary(s, head, cut.context, kind) for kind in order),
            mixture=Mixture(_count(s, "experts"), 1, halves // 2, normalized=False),
            tied=s.is_tied(names.whole("head"), default=True),
            slices=slices,
            max_tokens=cut.max_tokens,
            context=cut.context,
        )
        s.check()
        names.check_extent(source, _count(s, "layers"), config.mixture)
        return config, names


def _kinds(s: Settings, folded: bool, count: int) -> tuple[Sequence[str], int | None]:
    """Of each attention, and the window of sliding ones; the first release has one kind."""
    if not folded:
        return [_FULL] * count, None
    for key in () if s.get("rope_parameters") else ("partial_rotary_factor", "rope_theta"):
        if (told := s.get(key)) is not None:  # transformers looks into the tables alone.
            s.refuse(key, told)
    kinds = s.layers("layer_types", {kind: kind for kind in _THETAS}) or [_FULL] * count
    window = s.window(None)
    if _SLIDING in kinds and window is None:
        raise SourceError(f"{s.source.label}: layer_types has sliding ones, and no window.")
    return kinds, window


def _rotary(s: Settings, head: int, positions: int, kind: str) -> Rotary:
    """A kind's angles, by its table, or by the keys of the first release, which has one kind."""
    tables = bool(s.get("rope_parameters"))
    return s.rotary(
        head,
        positions,
        theta=_THETAS[kind],
        partial=1.0 if tables else 0.5,
        layer_type=kind if tables else "",
        theta_key="rope_theta" if s.get("rope_theta") else "rotary_base",
    )


def _count(s: Settings, name: str) -> int:
    return whole(*_value(s, *_COUNTS[name]), MAX_LAYERS if name == "layers" else MAX_DIMENSION)


def _value(s: Settings, default: float, keys: Sequence[str]) -> tuple[Any, str]:
    """A setting by the first key there, of a list the largest, and how a sentence begins."""
    key = next((key for key in keys if s.get(key) is not None), None)
    if key is None and not s.source.synthetic:
        raise SourceError(f"{s.source.label}: config.json has none of {', '.join(keys)}.")
    value = default if key is None else s.get(key)
    if isinstance(value, list) and value and all(type(n) in (int, float) for n in value):
        value = max(value)
    return value, s.what(key or keys[0])


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """Layers `L00`, `L01`... one after another, then head slices `head.0`, `head.1`...

    A mixture hands its router's state to the next one in the stream `router`, which has no channels
    in the notes' form.
    """
    return tuple(map(_wire, blocks.wiring(shards, "zaya")))


def _wire(wire: Wire) -> Wire:
    if blocks.is_head(wire.shard):
        return wire
    index = blocks.block_index(wire.shard)
    if is_attention(index):
        return replace(wire, kind="attention")
    takes = ("x", "router") if index > 1 else ("x",)
    return replace(wire, takes=takes, more=(Branch("router", "set", -1),), kind="mixture")


def is_attention(index: int) -> bool:
    return index % 2 == 0


class ZayaModel(DecoderModel):
    """One model; weights are read from the source shard by shard."""

    config: ZayaConfig
    names: ZayaNames
    exact: ZayaReference
    dtype: npt.DTypeLike = np.float16
    """Of what is converted: half the memory, and fp16 ones convert fastest."""

    def independent(self, shard: str) -> bool:
        """Nobody else computes the notes' form, of which transformers has the head alone."""
        return self.config.is_published or is_head(shard)

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        """What transformers gives the first layer, or this family the notes' form."""
        return super().reference_embed(ids) if self.config.is_published else self.embed(ids)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard on sequences `[T, C]`."""
        if is_head(shard):
            return super().reference(shard)
        if not self.config.is_published:
            return self._itself(shard)
        index = block_index(shard)
        half = self.exact.attention if is_attention(index) else self.exact.mixture
        return half(index // 2)

    def residual(self, shard: str) -> Reference | None:
        """What enters a layer, times its residual scale, plus its residual bias."""
        if is_head(shard):
            return None
        index = block_index(shard)
        if self.config.is_published:
            return self.exact.path(index // 2, attention=is_attention(index))
        w = self.weights.residual(index)
        scale, bias = w.residual_scale.numpy(), w.residual_bias.numpy()
        return lambda sequences: [x * scale + bias for x in sequences]

    def routed(self, shard: str) -> Routing | None:
        """Experts of a mixture that are chosen, or of the notes' form those that say much."""
        if not self._is_sparse(shard):
            return None
        index = block_index(shard)
        if self.config.is_published:
            return self.exact.routed(index // 2)
        from pytest_ane.models.families.zaya._forms import routes

        w = self.weights.mixture(index)
        return lambda sequences: [routes(x, w, self.config) for x in sequences]

    def undecided(self, shard: str) -> Undecided | None:
        """Where fp16 cannot tell which expert is chosen; the notes' form weights all of them."""
        if not (self.config.is_published and self._is_sparse(shard)):
            return None
        return self.exact.undecided(block_index(shard) // 2)

    def _stateless(self) -> ZayaConfig:
        return self.config

    def filling(self, shard: str) -> None:
        """None: a sequence is run from its start."""

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        if is_head(shard):
            return super().ports(shard)
        c, index = self.config, block_index(shard)
        if is_attention(index):
            states = tuple(Port(name, shape) for name, shape in c.state_shapes(index).items())
            return replace(super().ports(shard), states=states)
        x, y = c.width + c.enters(index), c.width + c.leaves(index)
        return Ports((Port("x", (1, x, "T", 1)),), (Port("y", (1, y, "T", 1)),))

    def _module(self, shard: str) -> nn.Module:
        from pytest_ane.models.families.zaya._forms import (
            AneAttention,
            AneMixture,
            PublishedMixture,
        )

        if is_head(shard):
            return super()._module(shard)
        c, index, weights = self.config, block_index(shard), self._weights(self.dtype)
        if is_attention(index):
            return AneAttention(c, index, weights.cca(index))
        return (PublishedMixture if c.is_published else AneMixture)(c, index, weights)

    def _weights(self, dtype: npt.DTypeLike) -> ZayaWeights:
        from pytest_ane.models.families.zaya._forms import ZayaWeights

        return ZayaWeights(self.source, self.config, self.names, dtype)


def open_model(source: Source, cut: Cut) -> ZayaModel:
    """As `Family.open_model`."""
    ids = [wire.shard for wire in wiring(cut.shards)]
    config, names = ZayaConfig.read(source, blocks.slices(ids), cut)
    blocks.check_depth(source.label, filter(blocks.is_block, ids), len(config.layers))

    def exact() -> ZayaReference:
        from pytest_ane.models.reference.zaya import ZayaReference

        return ZayaReference(source)

    return ZayaModel(source, config, names, cut, exact)


def layout(description: dict[str, Any], shard: str) -> AneLayout:
    """A shard's layout from `ZayaModel.description`, without the weights."""
    return decoder_layout(ZayaConfig.from_description(description), shard)
