"""A model's configuration by transformers' keys, from `config.json` or GGUF's metadata.

A family reads the keys that it honours. What is left may not say that the model is another one:
keys known to change the result are refused unless they have the value that changes nothing.
`plain` reads what the configurations of llama-like families share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families._layout import Rotary
from pytest_ane.models.families.decoder._config import (
    ATTENTION,
    FEED_FORWARD,
    FREQUENCY_FACTORS,
    GGUF,
    LINEAR,
    SHORT_FACTORS,
    Activation,
    DecoderConfig,
    Layer,
)
from pytest_ane.models.families.decoder._rope import Parameters, rotary
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import (
    MAX_DIMENSION,
    MAX_LAYERS,
    architecture_of,
    overridden,
    positive,
    whole,
)
from pytest_ane.models.sources.files import SINGLE

_OFF = (
    "add_cross_attention alibi attention_bias attention_out_bias is_encoder_decoder mlp_bias "
    "parallel_attention qk_layernorm rope_interleave rope_interleaved use_mrope "
    "use_parallel_residual use_qk_norm use_qkv_bias"
)
_NONE = "attention_chunk_size attn_logit_softcapping clip_qkv final_logit_softcapping kv_lora_rank"
_ZERO = (
    "hidden_size_per_layer_input n_routed_experts num_experts num_kv_shared_layers "
    "num_local_experts"
)
_ONE = "embedding_multiplier logits_scaling partial_rotary_factor residual_multiplier"
_ANY = (
    "attention_multiplier dim_model_base no_rope_layer_interval query_pre_attn_scalar "
    "rope_local_base_freq scale_depth scale_emb"
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(_OFF.split(), (False,)),
    **dict.fromkeys((*_NONE.split(), "no_rope_layers"), (None,)),
    **dict.fromkeys(("q_lora_rank", "quantization_config"), (None,)),
    **dict.fromkeys(_ZERO.split(), (None, 0)),
    **dict.fromkeys(_ONE.split(), (1.0,)),
    **dict.fromkeys(_ANY.split(), ()),
    **dict.fromkeys(("sliding_window", "use_bidirectional_attention"), (None, False)),
    "attn_temperature_tuning": (None, False, 0),
    "is_causal": (None, True),
    "logit_scale": (None, 1.0),
    "per_layer_config": (None, {}),
    "position_embedding_type": ("rope", "rotary"),
    "transformers_weights": (None, SINGLE),
}
"""Keys of configurations that change a result, with the values at which they do not."""

GGUF_KEYS: Mapping[str, str] = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "v_head_dim": "attention.value_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "vocab_size": "vocab_size",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
"""What the keys of `config.json` are called in GGUF, behind the architecture's name."""

GGUF_ROPE: Mapping[str, str] = {
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
GGUF_HARMLESS = ("context_length", "pooling_type", "tensor_data_layout", "vocab_size")
GGUF_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "rope.scaling.finetuned": (True,),
}
"""Keys of GGUF with the values at which llama.cpp computes what it computes without them: 1 is
softmax of `LLAMA_EXPERT_GATING_FUNC_TYPE`, and `finetuned` switches Granite's RoPE off."""
GGUF_UNUSED = "ssm."
"""Of recurrent layers, which Granite 4's dense models have none of, though the keys."""
GGUF_THETA = 10_000.0
"""RoPE's base where a GGUF file has none, of all architectures (`llama-model.cpp`)."""


Number = TypeVar("Number", bound=float)
_ROPE = "rope_parameters"
_FULL = {"full_attention"}
_OUTER = {"quantization_config", "tie_word_embeddings"}
"""Keys of a model that also sees images which are not in the table of its text's model."""


class Settings:
    """One configuration, arguments as of `DecoderFamily`; `SourceError` of another architecture."""

    def __init__(
        self,
        source: Source,
        family: str,
        types: Sequence[str],
        architectures: Sequence[str],
        synthetic: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        gguf_keys: Mapping[str, str] | None = None,
    ) -> None:
        self.source, self.family = source, family
        self._gguf = {**GGUF_KEYS, **(gguf_keys or {})}
        self._read: set[str] = set()
        key, architecture = architecture_of(source.value)
        self.is_gguf = key == "general.architecture"
        self._prefix = f"{architecture}." if self.is_gguf else ""
        usual = synthetic if source.synthetic else None if self.is_gguf else defaults
        self._usual = usual or {}
        nested = not self.is_gguf and isinstance(self._plain("text_config"), Mapping)
        # transformers looks for what is of the text's model in its table alone.
        self._outer = {*source.keys} - _OUTER if nested else set()
        known = architectures if self.is_gguf else types
        if architecture not in known and not source.synthetic:
            raise SourceError(
                f"{source.label}: architecture {architecture!r:.100}, expected "
                f"{' or '.join(map(repr, known))}."
            )

    def get(self, key: str, default: Any = None) -> Any:
        self._read.add(key)
        value = self._stored(key)
        return default if value is None else value

    def real(self, key: str, default: float | None = None) -> float:
        return positive(self.needed(key, default), self.what(key))

    def count(
        self, key: str, default: int | None = None, most: int = MAX_DIMENSION, null: Any = None
    ) -> int:
        """A whole number from 1; `SourceError` where it is none, or absent without a default.

        GGUF files may list one for each layer, which must be the same. `null` is what JSON's null
        means, None where it means nothing.
        """
        value = self.needed(key, default, null)
        if self.is_gguf and isinstance(value, list) and value and value == value[:1] * len(value):
            value = value[0]
        return whole(value, self.what(key), most)

    def by_layer(self, key: str) -> list[int]:
        """A whole number for each layer; the same for all where the file has one alone."""
        layers = self.count("num_hidden_layers", most=MAX_LAYERS)
        values = self.needed(key)
        if not isinstance(values, list):
            return [self.count(key)] * layers
        if len(values) != layers:
            raise SourceError(
                f"{self.what(key)} has {len(values)} numbers, not one for each of {layers} layers."
            )
        return [whole(value, self.what(key)) for value in values]

    def published(self, default: Number | None) -> Number | None:
        return None if self.is_gguf else default

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.needed(key, default)
        if not isinstance(value, bool):
            raise SourceError(f"{self.what(key)} is {value!r:.100}, neither true nor false.")
        return value

    def cap(self, key: str, default: float | None = None) -> float | None:
        self._read.add(key)
        value = self._stored(key, default)
        return None if value is None else positive(value, self.what(key))

    def is_tied(self, head: str, default: bool) -> bool:
        """Whether the head is the embedding's: not where the file has one, as in transformers 5."""
        names = self.source.names
        return self.flag("tie_word_embeddings", bool(names) or default) and head not in names

    def layers(self, key: str, known: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """What each layer's entry of a list stands for; None where there is no list."""
        entries = self.get(key)
        if entries is None:
            return None
        count = self.count("num_hidden_layers", most=MAX_LAYERS)
        plain = isinstance(entries, (list, tuple)) and len(entries) == count
        if not plain or any(str(entry) not in known for entry in entries):
            raise SourceError(
                f"{self.what(key)} is {entries!r:.200}; expected one of {', '.join(known)} for "
                f"each of {count} layers."
            )
        return tuple(known[str(entry)] for entry in entries)

    def vocabulary(self) -> int:
        """How many tokens; some GGUF files leave the key out, and have the tokens themselves."""
        told = self._has("vocab_size") or not self.is_gguf
        tokens = None if told else self._plain("tokenizer.ggml.tokens")
        return self.count("vocab_size", None if tokens is None else len(tokens))

    def window(self, default: int | None) -> int | None:
        """The default where the key is absent; GGUF files of Phi-4 have 0, which is none."""
        if self.is_gguf and self.get("sliding_window") == 0:
            return None
        width = self.cap("sliding_window", default)
        return None if width is None else whole(width, self.what("sliding_window"))

    def switched_window(self, default: int | None) -> int | None:
        self._read.add("sliding_window")
        return self.window(default) if self.flag("use_sliding_window") else None

    def windows(self, kinds: Sequence[str], window: int | None) -> list[int | None]:
        """Each layer's window, by `layer_types`, or by these kinds where it is absent."""
        known = {"full_attention": None, "sliding_attention": window}
        told = self.layers("layer_types", known)
        if told is not None and window is None and "sliding_attention" in self.get("layer_types"):
            raise SourceError(
                f"{self.what('layer_types')} has layers with a window, and no other key gives one; "
                "sliding_window is its width, and use_sliding_window may switch it off."
            )
        return list(told if told is not None else (known[kind] for kind in kinds))

    def only(self, key: str, computed: Any) -> None:
        value = self.needed(key, computed, null=None if computed else computed)
        if value != computed:
            raise SourceError(
                f"{self.what(key)} is {value!r:.100}, and family {self.family!r} computes "
                f"{computed!r} only."
            )

    def rotary(
        self,
        head: int,
        positions: int,
        *,
        theta: float = 10_000.0,
        partial: float | None = None,
        layer_type: str = "",
        theta_key: str = "rope_theta",
        scaled: bool = True,
    ) -> Rotary:
        """RoPE's angles for as many positions as the shards take.

        `theta` is the base where `config.json` names none, which may stand at `theta_key` besides
        the table; `partial` the share of the head that turns where the file names none, None where
        the family honours no share; `layer_type` whose table it is, where there are several;
        `scaled` whether `rope_scaling` is this table's. `SourceError` for a kind that is not
        computed, or what is said twice and differently.
        """
        table, what = self._rope_table(head, layer_type, scaled=scaled)
        if partial is None and table.get("partial_rotary_factor", 1.0) != 1.0:
            key = "rope.dimension_count" if self.is_gguf else f"{what}.partial_rotary_factor"
            told = self._plain(f"{self._prefix}{key}")
            self.refuse(key, table["partial_rotary_factor"] if told is None else told)
        if "rope_theta" in table and self._has(theta_key):
            self._agree(theta_key, table["rope_theta"], f"{what}.rope_theta")
        if partial is not None and "partial_rotary_factor" not in table:
            table["partial_rotary_factor"] = self.get("partial_rotary_factor", partial)
        told, trained = (
            self.count(key) if self._has(key) else None
            for key in ("original_max_position_embeddings", "max_position_embeddings")
        )
        if told is not None and table.get("rope_type", table.get("type")) not in (None, "default"):
            table["original_max_position_embeddings"] = told
        if self.is_gguf and theta_key == "rope_theta":
            theta = GGUF_THETA
        names = {key: f"{self._prefix}{name}" for key, name in GGUF_ROPE.items()}
        names["short_factor"] = SHORT_FACTORS
        base, name = self.real(theta_key, theta), names if self.is_gguf else what
        angles = rotary(Parameters(self._where, table, head, base, positions, trained, name))
        return self.with_factors(angles) if scaled else angles

    def check(self) -> None:
        # GGUF has one name for what several keys of `config.json` say.
        known = {self._file_key(key) for key in self._read}
        for key, nothing in NEUTRAL.items():
            value = None if self._file_key(key) in known else self._stored(key)
            if value is not None and value not in nothing:
                self.refuse(key, value)
        kinds = None if "layer_types" in self._read else self._stored("layer_types")
        if kinds is not None and (not isinstance(kinds, list) or {*map(str, kinds)} != _FULL):
            self.refuse("layer_types", kinds)
        known |= {f"{self._prefix}{key}" for key in GGUF_HARMLESS}
        experts = self._plain(f"{self._prefix}expert_count")
        for key in self.source.keys if self.is_gguf else ():
            own, value = key.removeprefix(self._prefix), self._plain(key)
            zero = value == 0 and value is not False
            unused = own.startswith("expert_") and (zero or not experts)
            unused = unused or own.startswith(GGUF_UNUSED) or value in GGUF_NEUTRAL.get(own, ())
            if own != key and key not in known and not unused:
                self.refuse(own, value)

    def what(self, key: str) -> str:
        return f"{self.source.label}: {self._file_key(key)}"

    def _file_key(self, key: str) -> str:
        return f"{self._prefix}{self._gguf.get(key, key)}" if self.is_gguf else key

    @property
    def _where(self) -> str:
        return f"{self.source.label}: {'its metadata' if self.is_gguf else 'config.json'}"

    def refuse(self, key: str, value: Any) -> NoReturn:
        raise SourceError(
            f"{self._where} has {self._file_key(key)} {value!r:.100}, which family "
            f"{self.family!r} does not compute, so its reference would be another model."
        )

    def _agree(self, key: str, other: Any, other_key: str) -> None:
        if (value := self.get(key)) != other:
            raise SourceError(
                f"{self._where} has {key} {value!r:.50} and {other_key} "
                f"{other!r:.50}; leave one of them."
            )

    def needed(self, key: str, default: Any = None, null: Any = None) -> Any:
        value = self._stored(key, default)
        value = null if value is None else value
        self._read.add(key)
        if value is None:
            null = f"{key} null, which is no value; put in the one that the model was trained with"
            is_null = not self.is_gguf and self._has(key)
            what = null if is_null else f"no {self._file_key(key)}"
            raise SourceError(f"{self._where} has {what}.")
        return value

    def _has(self, key: str) -> bool:
        return self._stored(key, absent=...) is not ...

    def _stored(self, key: str, absent: Any = None) -> Any:
        if self.is_gguf:
            return self._plain(self._file_key(key), absent) if key in self._gguf else absent
        value = self._plain(f"text_config.{key}", ...)
        if value is not ...:
            return value
        value = self._plain(key, absent)
        if key in self._outer and value is not None and value not in NEUTRAL.get(key, ()):
            raise SourceError(
                f"{self._where} has {key} {value!r:.50} beside text_config, which has none; move "
                "it there, or leave it out."
            )
        return value

    def _plain(self, key: str, absent: Any = None) -> Any:
        usual = self._usual.get(key, absent)
        try:
            value = self.source.value(key)
        except SourceError:
            return usual
        tables = isinstance(value, Mapping) and isinstance(usual, Mapping)
        return overridden(usual, value) if tables else value

    def _rope_table(
        self, head: int, layer_type: str, *, scaled: bool
    ) -> tuple[dict[str, Any], str]:
        if self.is_gguf:
            return (self._gguf_rope(head) if scaled else {}), "rope.scaling"
        tables = {name: self.get(name) for name in (_ROPE, "rope_scaling") if self.get(name)}
        if len(tables) > 1:
            self._agree(_ROPE, tables["rope_scaling"], "rope_scaling")
        name, table = next(iter(tables.items()), (_ROPE, {}))
        if layer_type and name == _ROPE and isinstance(table, Mapping) and table:
            # transformers takes no notice of what such a table says of all layers at once.
            name, table = f"{name}.{layer_type}", table.get(layer_type)
            if table is None:
                raise SourceError(f"{self._where} has no {name} beside its other {_ROPE}.")
        elif not scaled:
            table = {}
        if not isinstance(table, Mapping):
            raise SourceError(f"{self.source.label}: {name} is {table!r:.100}, no table.")
        return dict(table), name

    def _gguf_rope(self, head: int) -> dict[str, Any]:
        """As llama.cpp reads `rope.scaling.*`: a factor without a kind is linear scaling."""
        self._read |= {*GGUF_ROPE.values(), "rope.scale_linear", "rope.dimension_count"}
        table = {key: self._plain(f"{self._prefix}{name}") for key, name in GGUF_ROPE.items()}
        if table["factor"] is None:
            table["factor"] = self._plain(f"{self._prefix}rope.scale_linear")
        if table["rope_type"] in (None, "linear"):
            table["rope_type"] = "linear" if table["factor"] else "default"
        channels = self._plain(f"{self._prefix}rope.dimension_count")
        if channels not in (None, head):
            what = f"{self.source.label}: {self._prefix}rope.dimension_count"
            table["partial_rotary_factor"] = whole(channels, what) / head
        if SHORT_FACTORS in self.source.names:
            factors = self.source.tensor(SHORT_FACTORS, ((channels or head) // 2,))
            table |= {"rope_type": "longrope", "short_factor": factors.tolist()}
            table["attention_factor"] = table["attention_factor"] or 1.0
        elif (attention := table.pop("attention_factor")) not in (None, 1.0):
            # llama.cpp multiplies YaRN's own factor by it, where transformers' replaces that.
            self.refuse(GGUF_ROPE["attention_factor"], attention)
        return {key: value for key, value in table.items() if value is not None}

    def with_factors(self, angles: Rotary) -> Rotary:
        """GGUF keeps the scaling of llama3, and of Gemma 4, as divisors of the frequencies."""
        if not self.is_gguf or FREQUENCY_FACTORS not in self.source.names:
            return angles
        factors = self.source.tensor(FREQUENCY_FACTORS, (len(angles.frequencies),))
        what = f"{self.source.label}: {FREQUENCY_FACTORS}"
        divisors = (positive(factor, what) for factor in factors.tolist())
        scaled = (f / d for f, d in zip(angles.frequencies, divisors, strict=True))
        return Rotary(tuple(scaled), angles.factor)


def layers_of(
    windows: Sequence[int | None], rotaries: Sequence[int | None] | None = None
) -> tuple[Layer, ...]:
    turned = rotaries if rotaries is not None else [0] * len(windows)
    return tuple(Layer(r, w) for r, w in zip(turned, windows, strict=True))


_KEY_HEADS = {
    **dict.fromkeys(("gemma2", "gemma3", "gemma4", "qwen3_moe", "smollm3"), 4),
    **{"mistral": 8, "mixtral": 8, "qwen2_moe": 16, "qwen2": 32, "qwen3": 32},
}
"""Of families of which `config.json` that leaves them out does not mean as many as query heads."""


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

    Where the configuration does not tell, `theta` is RoPE's base, or None where the family reads
    RoPE, `head` the channels of a head, an even share where None, and `partial` the share of a head
    that turns, None where all must. `SourceError` for sizes that do not fit one another, or another
    activation.
    """
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    usual = None if s.source.synthetic else s.published(_KEY_HEADS.get(s.family))
    kv_heads = kv_heads or s.count("num_key_value_heads", usual or heads, null=heads)
    even = width // heads if width % heads == 0 else None
    head = s.count("head_dim", s.published(head) or even, null=None if head else even)
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
    """Projections with a bias; without `ffn` only attention may have some."""
    if s.is_gguf:
        parts = LINEAR if ffn else ATTENTION
        return tuple(part for part in parts if f"blk.0.{GGUF[part]}.bias" in s.source.names)
    attention = ATTENTION if s.flag("attention_bias") else ()
    return (*attention, *(FEED_FORWARD if ffn and s.flag("mlp_bias") else ()))
