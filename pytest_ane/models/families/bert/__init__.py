"""BERT: an encoder with post-norm blocks, and pooling into one embedding. MiniLM, BGE, E5."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pytest_ane.manifest.chain import EMBEDDING
from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError, ManifestError, SourceError
from pytest_ane.models.families import Conversion, Cut, Inputs, Port, Ports, Reference, Wire
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import starts_whole
from pytest_ane.models.families._layout import MASKED, AneLayout
from pytest_ane.models.families.decoder._model import spread
from pytest_ane.models.families.decoder._settings import Settings
from pytest_ane.models.sources import Source
from pytest_ane.models.sources.base import (
    MAX_LAYERS,
    architecture_of,
    check_names,
    check_numbers,
    whole,
)

if TYPE_CHECKING:
    from pytest_ane.models.families.bert._forms import Weights
    from pytest_ane.models.reference import BertReference


__all__ = ["POOLING", "VERSION", "BertModel", "spread", "starts_whole"]

converted = ("bert",)
"""Values of GGUF's `general.architecture` that are this family's."""

_TABLES = ("word", "position", "type")
_PARTS = {
    "word": ("embeddings.word_embeddings", "token_embd"),
    "position": ("embeddings.position_embeddings", "position_embd"),
    "type": ("embeddings.token_type_embeddings", "token_types"),
    "norm": ("embeddings.LayerNorm", "token_embd_norm"),
    "q": ("encoder.layer.{}.attention.self.query", "blk.{}.attn_q"),
    "k": ("encoder.layer.{}.attention.self.key", "blk.{}.attn_k"),
    "v": ("encoder.layer.{}.attention.self.value", "blk.{}.attn_v"),
    "qkv": ("encoder.layer.{}.", "blk.{}.attn_qkv"),
    "o": ("encoder.layer.{}.attention.output.dense", "blk.{}.attn_output"),
    "attention_norm": ("encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"),
    "up": ("encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"),
    "down": ("encoder.layer.{}.output.dense", "blk.{}.ffn_down"),
    "ffn_norm": ("encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"),
}
"""In checkpoints, and in GGUF, where alone three maps may be in one tensor."""
_UNUSED = r"embeddings\.position_ids|pooler\.dense\.(weight|bias)"
"""Not of the hidden states: transformers' `pooler_output`, and below the heads of pre-training."""
_PRETRAINING = r"cls\..*"


@dataclass(frozen=True)
class Names:
    """Names in one file; published ones begin with the `root`, which is None for GGUF."""

    root: str | None
    norm: tuple[str, ...] = ("weight", "bias")

    def tensors(self, part: str, index: int | str = "") -> tuple[str, ...]:
        """A part's tensors, a block's by its index: a table, or a weight and a bias."""
        kinds = self.norm if part.endswith("norm") else ("weight", "bias")
        name = f"{self.root or ''}{_PARTS[part][self.root is None].format(index)}"
        return tuple(f"{name}.{kind}" for kind in kinds[: 1 if part in _TABLES else 2])

    def check(self, source: Source) -> None:
        known = [re.escape(name) for part in _PARTS for name in self.tensors(part, "@")]
        known += [f"{re.escape(self.root)}({_UNUSED})"] if self.root is not None else []
        known += [_PRETRAINING] if self.root else []
        pattern = "|".join(known).replace("@", r"\d+")
        check_names(source.label, "bert", source.names, re.compile(pattern))


def find_names(source: Source) -> Names:
    """As a source calls its tensors; older checkpoints have norms of `gamma` and `beta`."""
    if architecture_of(source.value)[0] == "general.architecture":
        return Names(None)
    root = "bert." if "bert.embeddings.word_embeddings.weight" in source.names else ""
    old = f"{root}embeddings.LayerNorm.gamma" in source.names
    return Names(root, ("gamma", "beta")) if old else Names(root)


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

    `vocabulary`, `positions` and `types` are rows of the three embeddings. A call has `length`
    positions; what a text leaves of them is padding. `normalized`: the embedding's norm is 1.
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
        return self.width // self.heads


def _read(source: Source, length: int) -> BertConfig:
    s = Settings(source, "bert", ("bert",), ("bert",), gguf_keys=_GGUF_KEYS)
    s.only("position_embedding_type", "absolute")
    s.only("is_decoder", computed=False)
    width, heads = s.count("hidden_size"), s.count("num_attention_heads")
    if width % heads:
        raise SourceError(f"{source.label}: {heads} heads do not divide {width} channels.")
    s.only("is_causal", computed=False)
    if s.is_gguf:
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
        check_numbers(source.label, source.names, r".*(?:layer|blk)\.(\d+)\.", config.layers)
    return config


def _count_types(s: Settings) -> int:
    """Types of tokens; a DistilBERT's GGUF file, which is one of BERT otherwise, has none."""
    if not s.is_gguf:
        return s.count("type_vocab_size", 2)
    if find_names(s.source).tensors("type")[0] not in s.source.names:
        return 0
    key = "tokenizer.ggml.token_type_count"
    return whole(s.source.value(key), f"{s.source.label}: {key}")


def _read_activation(s: Settings) -> Activation:
    name = str(s.needed("hidden_act", "gelu"))
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
    layers = [shard for shard in shards if shard != POOLING]
    for shard in layers:
        if not blocks.is_block(shard):
            raise ManifestError(
                f"Family 'bert' has no shard {shard!r}; blocks are L00, L01, ... and the last one "
                f"is {POOLING}."
            )
    last = [Wire(POOLING, gives=EMBEDDING, kind=POOLING)] if POOLING in shards else []
    return (*map(Wire, sorted(layers, key=blocks.block_index)), *last)


def open_model(source: Source, cut: Cut) -> BertModel:
    shards = [wire.shard for wire in wiring(cut.shards)]
    config = _read(source, cut.max_tokens)
    blocks.check_depth(source.label, filter(blocks.is_block, shards), config.layers)
    return BertModel(source, config, shards)


def layout(description: dict[str, Any], shard: str) -> BertLayout:
    config = BertConfig(**description)
    return BertLayout("bert", config.width, length=config.length, pools=shard == POOLING)


@dataclass(frozen=True)
class BertLayout(AneLayout):
    """Hidden states enter as `x [1, C, N, 1]` with a `mask [1, 1, 1, N]` of N fixed positions.

    A text's T positions come first; the mask is 0 there, and large and negative at padding. N is
    `length`; where it `pools`, the output is one row for the whole text.
    """

    attends: bool = True
    length: int = 1
    pools: bool = False
    causal: bool = False

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """Inputs for a whole text's hidden states `[T, C]`.

        Padding is the last row's negative: unlike any row of the text, so that what leaks through
        a mask shows.

        Raises:
            ExecutionError: the text is longer than a call, or comes in several.
        """
        rest = self.length - len(hidden)
        if start or rest < 0:
            raise ExecutionError(
                f"an encoder takes a text of up to {self.length} positions in one call, not "
                f"positions {start} to {start + len(hidden) - 1}; raise max-tokens in shards.toml."
            )
        rows = np.concatenate([hidden, np.repeat(-hidden[-1:], rest, axis=0)])
        mask = np.where(np.arange(self.length) < len(hidden), np.float32(0), np.float32(MASKED))
        x = np.ascontiguousarray(rows.T)[None, :, :, None]
        return {"x": x, "mask": mask[None, None, None]}


class BertModel:
    """One model; weights are read from the source shard by shard."""

    def __init__(self, source: Source, config: BertConfig, shards: Sequence[str]) -> None:
        self.source, self.config, self.shards = source, config, shards
        self.positions, self.description = config.length, asdict(config)
        self.missing = blocks.missing(shards, config.layers)

    @property
    def weights(self) -> Weights:
        """The source by the names of its file."""
        from pytest_ane.models.families.bert._forms import Weights

        return Weights(self.source, self.config)

    def layout(self, shard: str) -> BertLayout:
        """How hidden states enter and leave a shard."""
        return layout(self.description, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        """Hidden states `[T, C]` of a text from position 0, all of the first token type."""
        return self.weights.embedding(ids).numpy()

    @cached_property
    def exact(self) -> BertReference:
        """The model of transformers that shards are held against."""
        from pytest_ane.models.reference import BertReference

        return BertReference(self.source, {"model_type": "bert"})

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        """What transformers gives the first block."""
        return self.exact.embed(ids)

    def reference(self, shard: str) -> Reference:
        """The float32 module of a shard."""
        if shard != POOLING:
            return self.exact.layer(blocks.block_index(shard)).run
        from pytest_ane.models.reference import pooling

        return pooling(self.source)

    def independent(self, shard: str) -> bool:
        """Transformers has the blocks; pooling is ours on both sides."""
        return shard != POOLING

    def residual(self, shard: str) -> Reference | None:
        """What a block gives if neither of its halves adds anything."""
        return None if shard == POOLING else self.exact.path(blocks.block_index(shard))

    def conversion(self, shard: str) -> Conversion:
        """The ANE form of a shard."""
        from pytest_ane.models.families.bert._forms import AneBlock, AnePooling

        c, ports = self.config, self.ports(shard)
        if shard == POOLING:
            return Conversion(AnePooling(c), ports.inputs, ports.outputs)
        weights = self.weights.block(blocks.block_index(shard))
        return Conversion(AneBlock(c, weights), ports.inputs, ports.outputs)

    def ports(self, shard: str) -> Ports:
        """As of `conversion`."""
        c, pools = self.config, shard == POOLING
        x, mask = Port("x", (1, c.width, c.length, 1)), Port("mask", (1, 1, 1, c.length))
        inputs = (x,) if pools and c.pooling == "cls" else (x, mask)
        return Ports(inputs, (Port("y", (1, c.width, 1 if pools else c.length, 1)),))
