"""What a BERT is made of, the names of its tensors, and its shards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from pytest_ane.core.errors import ManifestError, SourceError
from pytest_ane.families import blocks
from pytest_ane.families.base import Wire
from pytest_ane.families.decoder.settings import Settings
from pytest_ane.manifest.chain import EMBEDDING
from pytest_ane.sources import Source, Spread
from pytest_ane.sources.settings import MAX_LAYERS, check_names

VERSION = "bert/2"
"""Raised when a change alters what a shard computes."""
POOLING = "pooling"
"""The shard that makes one embedding of a text's hidden states."""

Activation = Literal["erf", "tanh", "relu"]
Pooling = Literal["mean", "cls"]
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "gelu": "erf",
        "gelu_python": "erf",
        "gelu_new": "tanh",
        "gelu_fast": "tanh",
        "gelu_pytorch_tanh": "tanh",
        "relu": "relu",
    }
)
"""By `hidden_act`: GELU by the error function or by its tanh approximation, or ReLU."""
_MODULES = "sentence_transformers"
_ROOTS = ("", "bert.")
_BLOCK = r"encoder\.layer\.\d+\.(attention\.self\.(query|key|value)|attention\.output\.dense|"
_KNOWN = (
    r"embeddings\.(word|position|token_type)_embeddings\.weight",
    r"embeddings\.LayerNorm\.(weight|bias|gamma|beta)",
    _BLOCK + r"intermediate\.dense|output\.dense)\.(weight|bias)",
    r"encoder\.layer\.\d+\.(attention\.)?output\.LayerNorm\.(weight|bias|gamma|beta)",
)
_UNUSED = r"embeddings\.position_ids|pooler\.dense\.(weight|bias)"
"""Not of the hidden states: transformers' `pooler_output` and the heads of pre-training."""
_PRETRAINING = r"cls\..*"


@dataclass(frozen=True)
class BertConfig:
    """Dimensions, and the parts that configurations choose.

    Attributes:
        width: channels of a hidden state.
        ffn: inner channels of the feed-forward network.
        vocabulary, positions, types: rows of the three embeddings.
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

    @property
    def description(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)


def read(source: Source, length: int) -> BertConfig:
    """A source's configuration, for calls of `length` positions.

    Raises:
        SourceError: of another architecture, of a variant that is not computed, or absurd.
    """
    s = Settings(source, "bert", ("bert",), ("bert",))
    if s.is_gguf:
        raise SourceError(
            f"{source.label}: family 'bert' does not read GGUF; name the folder of the published "
            "safetensors checkpoint."
        )
    s.only("position_embedding_type", "absolute")
    s.only("is_decoder", computed=False)
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    if width % heads:
        raise SourceError(f"{source.label}: {heads} heads do not divide {width} channels.")
    pooling, normalized = _read_pooling(s)
    config = BertConfig(
        width=width,
        ffn=s.count("intermediate_size"),
        heads=heads,
        layers=s.count("num_hidden_layers", most=MAX_LAYERS),
        vocabulary=s.count("vocab_size"),
        positions=s.count("max_position_embeddings", 512),
        types=s.count("type_vocab_size", 2),
        epsilon=s.real("layer_norm_eps", 1e-12),
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
        _check_names(source)
    return config


def _read_activation(s: Settings) -> Activation:
    name = s.get("hidden_act", "gelu")
    if name not in _ACTIVATIONS:
        raise SourceError(
            f"{s.what('hidden_act')} is {name!r:.100}, and family 'bert' computes "
            f"{', '.join(_ACTIVATIONS)} only."
        )
    return _ACTIVATIONS[name]


def _read_pooling(s: Settings) -> tuple[Pooling, bool]:
    """As `sentence_transformers` says; without it the mean, as that library adds it by itself."""
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


def find_root(source: Source) -> str:
    """What the names of a checkpoint's tensors begin with."""
    stem = "embeddings.word_embeddings.weight"
    return next((root for root in _ROOTS if f"{root}{stem}" in source.names), "")


def _check_names(source: Source) -> None:
    """`SourceError` for a tensor that would be left out."""
    root = re.escape(find_root(source))
    known = f"{root}({'|'.join((*_KNOWN, _UNUSED))})"
    pattern = re.compile(f"{known}|{_PRETRAINING}" if root else known)
    check_names(source.label, "bert", source.names, pattern)


def wiring(shards: Sequence[str]) -> tuple[Wire, ...]:
    """Blocks `L00`, `L01`... one after another, then `pooling`.

    Raises:
        ManifestError: a shard id is neither.
    """
    layers = _layers(shards)
    for shard in layers:
        if not blocks.is_block(shard):
            raise ManifestError(
                f"Family 'bert' has no shard {shard!r}; blocks are L00, L01, ... and the last one "
                f"is {POOLING}."
            )
    last = [Wire(POOLING, gives=EMBEDDING, kind=POOLING)] if POOLING in shards else []
    return (*map(Wire, sorted(layers, key=blocks.block_index)), *last)


def starts_whole(shards: Sequence[str]) -> bool:
    """Whether the blocks form a contiguous prefix of the model."""
    return blocks.starts_whole(_layers(shards))


def missing(shards: Sequence[str], layers: int) -> list[str]:
    """Blocks of a model of so many layers that are not among these shards."""
    return blocks.missing(_layers(shards), layers)


def check_depth(label: str, shards: Sequence[str], layers: int) -> None:
    """`SourceError` for the first block that a model of so many layers does not have."""
    blocks.check_depth(label, _layers(shards), layers)


def _layers(shards: Sequence[str]) -> list[str]:
    return [shard for shard in shards if shard != POOLING]


def spread(name: str, shape: tuple[int, ...]) -> Spread:
    """Norms near 1, small biases, and matrices that keep the variance of what enters."""
    if name.endswith(".bias"):
        return Spread(std=0.1)
    if len(shape) == 1:
        return Spread(std=0.1, mean=1.0)
    if "embeddings" in name:
        return Spread(1.0)
    return Spread.of(shape[-1] ** -0.5, outliers=0.03)
