"""What a BERT is made of, and its shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_ane.manifest.chain import EMBEDDING
from pytest_ane.mlprogram.errors import ManifestError, SourceError
from pytest_ane.models.families import blocks
from pytest_ane.models.families.base import Wire
from pytest_ane.models.families.bert.names import find_names
from pytest_ane.models.families.decoder.settings import Settings
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.settings import MAX_LAYERS, whole

VERSION = "bert/2"
"""Raised when a change alters what a shard computes."""
POOLING = "pooling"
"""The shard that makes one embedding of a text's hidden states."""

Activation = Literal["erf", "tanh", "relu"]
Pooling = Literal["mean", "cls"]
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "relu": "relu",
}
"""By `hidden_act`: GELU by the error function or by its tanh approximation, or ReLU."""
_MODULES = "sentence_transformers"
_GGUF_KEYS = {
    "is_causal": "attention.causal",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "pooling_type": "pooling_type",
}
_GGUF_POOLING: Mapping[int, tuple[Pooling, bool]] = {
    0: ("mean", False),
    1: ("mean", True),
    2: ("cls", True),
}
"""By `pooling_type`, and whether the embedding's norm is 1, as llama.cpp makes it where no option
says otherwise (`embd_normalize` in `common/common.h`). 0 is none, as where nothing says: then what
a folder is without sentence-transformers' files."""


@dataclass(frozen=True)
class BertConfig:
    """Dimensions, and the parts that configurations choose.

    Attributes:
        width: channels of a hidden state.
        ffn: inner channels of the feed-forward network.
        vocabulary, positions, types: rows of the three embeddings; 0 types where there are none.
        epsilon: of all norms.
        pooling: whether the embedding is the mean of all positions, or the first one.
        normalized: whether its norm is 1.
        length: positions of a call; what a text leaves of them is padding.
    """

    width: int
    ffn: int
    heads: int
    layers: int
    vocabulary: int
    positions: int
    types: int
    epsilon: float
    activation: Activation
    pooling: Pooling
    normalized: bool
    length: int

    @property
    def head(self) -> int:
        """Channels of one head."""
        return self.width // self.heads


def read(source: Source, length: int) -> BertConfig:
    """A source's configuration, for calls of `length` positions.

    Raises:
        SourceError: of another architecture, of a variant that is not computed, or absurd.
    """
    s = Settings(source, "bert", ("bert",), ("bert",), gguf_keys=_GGUF_KEYS)
    s.only("position_embedding_type", "absolute")
    s.only("is_decoder", computed=False)
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    if width % heads:
        raise SourceError(f"{source.label}: {heads} heads do not divide {width} channels.")
    if s.is_gguf:
        s.only("is_causal", computed=False)
        s.only("num_key_value_heads", heads)
    pooling, normalized = _read_pooling(s)
    config = BertConfig(
        width=width,
        ffn=s.count("intermediate_size"),
        heads=heads,
        layers=s.count("num_hidden_layers", most=MAX_LAYERS),
        vocabulary=s.vocabulary(),
        positions=s.count("max_position_embeddings", s.published(512)),
        types=_count_types(s),
        epsilon=s.real("layer_norm_eps", s.published(1e-12)),
        activation=_read_activation(s),
        pooling=pooling,
        normalized=normalized,
        length=length,
    )
    s.check()
    if length > config.positions:
        raise SourceError(
            f"{source.label}: has {config.positions} positions, and max-tokens is {length}; lower "
            "max-tokens in shards.toml."
        )
    if source.names:
        find_names(source).check(source)
    return config


def _count_types(s: Settings) -> int:
    """Types of tokens; a DistilBERT's GGUF file, which is one of BERT otherwise, has none."""
    if not s.is_gguf:
        return s.count("type_vocab_size", 2)
    if find_names(s.source).of("type")[0] not in s.source.names:
        return 0
    key = "tokenizer.ggml.token_type_count"
    return whole(s.source.value(key), f"{s.source.label}: {key}")


def _read_activation(s: Settings) -> Activation:
    name = str(s.get("hidden_act", "gelu"))
    if name not in _ACTIVATIONS:
        raise SourceError(
            f"{s.what('hidden_act')} is {name!r:.100}, and family 'bert' computes "
            f"{', '.join(_ACTIVATIONS)} only."
        )
    return _ACTIVATIONS[name]


def _read_pooling(s: Settings) -> tuple[Pooling, bool]:
    """As `sentence_transformers` says; without it the mean, as that library adds it by itself."""
    if s.is_gguf:
        kind = s.get("pooling_type", 0)
        if not isinstance(kind, int) or kind not in _GGUF_POOLING:
            s.refuse("pooling_type", kind)
        return _GGUF_POOLING[kind]
    table = s.get(_MODULES, {})
    if not isinstance(table, Mapping) or not table.keys() <= {"pooling", "normalize", "others"}:
        raise SourceError(f"{s.what(_MODULES)} is {table!r:.100}; it has pooling and normalize.")
    if others := table.get("others"):
        raise SourceError(
            f"{s.source.label}: modules.json has {', '.join(map(str, others))}, which family "
            "'bert' does not compute, so its embeddings would be another model's."
        )
    pooling, normalized = table.get("pooling", "mean"), table.get("normalize", False)
    if pooling not in get_args(Pooling) or not isinstance(normalized, bool):
        raise SourceError(
            f"{s.what(_MODULES)} has pooling {pooling!r:.100} and normalize {normalized!r:.20}; "
            f"family 'bert' computes {' and '.join(get_args(Pooling))}, normalized or not."
        )
    return pooling, normalized


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """Blocks `L00`, `L01`... one after another, then `pooling`.

    Raises:
        ManifestError: a shard id is neither.
    """
    layers = [shard for shard in shards if shard != POOLING]
    for shard in layers:
        if not blocks.is_block(shard):
            raise ManifestError(
                f"Family 'bert' has no shard {shard!r}; blocks are L00, L01, ... and the last one "
                f"is {POOLING}."
            )
    last = [Wire(POOLING, gives=EMBEDDING, kind=POOLING)] if POOLING in shards else []
    return (*map(Wire, sorted(layers, key=blocks.block_index)), *last)
