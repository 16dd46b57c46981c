"""A decoder over a source, and a family of decoders: how it cuts, reads and names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.families import (
    Conversion,
    Cut,
    Filling,
    Port,
    Ports,
    Reference,
    Routing,
    Undecided,
    Wire,
)
from pytest_ane.models.families import _blocks as blocks
from pytest_ane.models.families._blocks import block_index, head_index, is_head
from pytest_ane.models.families._layout import AneLayout, attention_ports
from pytest_ane.models.families.decoder._config import (
    GGUF,
    PUBLISHED,
    Activation,
    DecoderConfig,
    Names,
    Parts,
    find_root,
)
from pytest_ane.models.families.decoder._settings import Settings
from pytest_ane.models.sources import Source, Spread
from pytest_ane.models.sources.base import architecture_of

if TYPE_CHECKING:
    from torch import nn

    from pytest_ane.models.families.decoder._forms import Weights
    from pytest_ane.models.reference import DecoderReference


class DecoderModel:
    dtype: npt.DTypeLike = np.float32
    """Of what is converted."""

    def __init__(
        self,
        source: Source,
        config: DecoderConfig,
        names: Names,
        cut: Cut,
        exact: Callable[[], DecoderReference] | None,
        by_one_hand: bool = False,
    ) -> None:
        self.source, self.config, self.names, self.shards = source, config, names, cut.shards
        self.positions = config.context or cut.max_tokens
        self.description = asdict(config)
        self._exact, self._by_one_hand = exact, by_one_hand

    @property
    def missing(self) -> Sequence[str]:
        return blocks.missing(self.shards, len(self.config.layers))

    @property
    def weights(self) -> Any:
        return self._weights(np.float32)

    def layout(self, shard: str) -> AneLayout:
        return layout(self.config, shard)

    def embed(self, ids: Sequence[int]) -> FloatArray:
        scaled: FloatArray = self.weights.embedding(ids) * np.float32(self.config.embedding_scale)
        return scaled

    @cached_property
    def exact(self) -> DecoderReference:
        """The model of transformers that shards are held against, where it has one."""
        assert self._exact is not None
        return self._exact()

    def independent(self, shard: str) -> bool:
        return self._exact is not None and not self._by_one_hand

    def reference_embed(self, ids: Sequence[int]) -> FloatArray:
        return self.embed(ids) if self._exact is None else self.exact.embed(ids)

    def reference(self, shard: str) -> Reference:
        if self._exact is None:
            return self._itself(shard)
        if not is_head(shard):
            return self.exact.layer(self.index(shard)).run
        c = self.config
        return self.exact.head(*blocks.slice_bounds(c.vocabulary, c.slices, head_index(shard)))

    def residual(self, shard: str) -> Reference | None:
        return None if is_head(shard) else list

    def routed(self, shard: str) -> Routing | None:
        return self.exact.routed(self.index(shard)) if self._is_sparse(shard) else None

    def undecided(self, shard: str) -> Undecided | None:
        return self.exact.undecided(self.index(shard)) if self._is_sparse(shard) else None

    def filling(self, shard: str) -> Filling | None:
        if self.config.context is None or self.layout(shard).window is None or self._exact is None:
            return None
        layer = self.exact.attending(self.index(shard))
        return lambda hidden: self.config.filled(self.index(shard), *layer.keys_and_values(hidden))

    def _is_sparse(self, shard: str) -> bool:
        mixed = not is_head(shard) and self.config.mixture_of(self.index(shard)) is not None
        return mixed and self._exact is not None

    def _itself(self, shard: str) -> Reference:
        """The converted form in float32, any states at zero."""
        import torch

        plain = copy(self)
        plain.config, plain.dtype = self._stateless(), np.float32
        module, layout, ports = plain._module(shard), plain.layout(shard), plain.ports(shard)

        def run(hidden: FloatArray) -> FloatArray:
            inputs = layout.inputs(hidden)
            for state in ports.states:
                module.get_buffer(state.name).zero_()
            with torch.inference_mode():
                y = module(*(torch.from_numpy(np.asarray(inputs[p.name])) for p in ports.inputs))
            return layout.output({"y": y.numpy()})

        return lambda sequences: [run(hidden) for hidden in sequences]

    def _stateless(self) -> DecoderConfig:
        return replace(self.config, context=None)

    def conversion(self, shard: str) -> Conversion:
        ports = self.ports(shard)
        return Conversion(self._module(shard), ports.inputs, ports.outputs, ports.states)

    def ports(self, shard: str) -> Ports:
        c = self.config
        if is_head(shard):
            x = Port("x", (1, c.width, "T", 1))
            first, end = blocks.slice_bounds(c.vocabulary, c.slices, head_index(shard))
            return Ports((x,), (Port("y", (1, end - first, "T", 1)),))
        layout = self.layout(shard)
        turned = 0 if layout.rotary is None else layout.rotary.channels
        inputs = attention_ports(c.width, turned, layout.context)
        y = Port("y", inputs[0].shape)
        if layout.context is None:
            return Ports(inputs, (y,))
        head, kv_heads = c.heads_of(self.index(shard))
        shape = (kv_heads, 1, head, layout.context)
        return Ports(inputs, (y,), tuple(Port(name, shape) for name in ("k_cache", "v_cache")))

    def index(self, shard: str) -> int:
        return block_index(shard)

    def _module(self, shard: str) -> nn.Module:
        from pytest_ane.models.families._ane import AneHead
        from pytest_ane.models.families.decoder._forms import AneBlock, StatefulBlock

        c, weights = self.config, self._weights(self.dtype)
        if is_head(shard):
            norm, projection = weights.head(head_index(shard))
            return AneHead(norm * c.logit_scale, projection, c.stream_epsilon, c.logit_cap)
        form, index = AneBlock if c.context is None else StatefulBlock, self.index(shard)
        return form(c, index, weights.block(index))

    def _weights(self, dtype: npt.DTypeLike) -> Weights:
        from pytest_ane.models.families.decoder._forms import Weights

        return Weights(self.source, self.config, self.names, dtype)


def layout(config: DecoderConfig, shard: str) -> AneLayout:
    return config.head_layout if is_head(shard) else config.layout(block_index(shard))


_CORE = 3
"""Raised when a change of the core alters what the shards of all families compute."""


@dataclass(frozen=True)
class DecoderFamily:
    """What `pytest_ane.models.families.Family` asks, of one kind of decoder.

    Attributes:
        configure: reads a configuration for shards that take so many positions.
        types: of `config.json`'s `model_type`; the name alone where none are given.
        architectures: of GGUF's `general.architecture`; as the types where none are given.
        names, gguf_names: parts that checkpoints and GGUF files call otherwise than most.
        gguf_keys: keys of `config.json` that GGUF files call otherwise than most.
        fused: parts that are stored in one tensor.
        norm_offset: 1 where published norms compute x (1 + w); GGUF's have it in them.
        paired: whether GGUF stores queries and keys in adjacent pairs.
        tied: whether the head is the embedding's where the configuration does not tell.
        root: what names of synthetic tensors begin with.
        own: tensors of a block that the family reads by itself, in full, and their names in GGUF.
        synthetic: the configuration of synthetic weights where the manifest does not give it.
        defaults: what `config.json` means where it does not say, by the class of transformers.
        reference: the class that shards are held against, such as
            `transformers.VaultGemmaForCausalLM`; transformers' own for the `model_type` where none
            is given, and the converted form itself where it has none either.
    """

    name: str
    configure: Callable[[Settings, int], DecoderConfig]
    types: Sequence[str] = ()
    architectures: Sequence[str] = ()
    names: Parts = field(default_factory=dict)
    gguf_names: Parts = field(default_factory=dict)
    gguf_keys: Mapping[str, str] = field(default_factory=dict)
    fused: Sequence[Sequence[str]] = ()
    norm_offset: float = 0.0
    paired: bool = False
    tied: bool = False
    root: str = "model."
    own: Parts = field(default_factory=dict)
    synthetic: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    revision: int = 1

    @property
    def VERSION(self) -> str:
        """Part of every cache key: raised when a change alters what a shard computes."""
        return f"{self.name}/{_CORE}.{self.revision}"

    @property
    def published(self) -> Sequence[str]:
        return self.types or (self.name,)

    @property
    def converted(self) -> Sequence[str]:
        return self.architectures or self.published

    def open_model(self, source: Source, cut: Cut) -> DecoderModel:
        ids = [wire.shard for wire in self.wiring(cut.shards)]
        slices = blocks.slices(ids)
        config, names = self.read(source, cut, slices)
        blocks.check_depth(source.label, filter(blocks.is_block, ids), len(config.layers))
        if source.names:
            names.require(source, config, ids)
        module = self.reference.rpartition(".")[0]
        by_one_hand = module != "" and module == getattr(self.configure, "__module__", None)
        return DecoderModel(source, config, names, cut, self.exact(source), by_one_hand)

    def exact(self, source: Source) -> Callable[[], Any] | None:
        """Opens the model of transformers that shards of a source are held against, if any."""
        kind = self.usual(source).get("model_type") or architecture_of(source.value)[1]
        return partial(self.opened, source) if self.reference or in_transformers(kind) else None

    def opened(self, source: Source) -> Any:
        from pytest_ane.models.reference import DecoderReference

        return DecoderReference(source, self.usual(source), self.reference)

    def usual(self, source: Source) -> Mapping[str, Any]:
        """What the configuration of synthetic weights says where the manifest does not."""
        return {"model_type": self.published[0], **self.synthetic} if source.synthetic else {}

    def read(self, source: Source, cut: Cut, slices: int = 1) -> tuple[DecoderConfig, Names]:
        settings = Settings(
            source, self.name, self.published, self.converted,
            self.synthetic, self.defaults, self.gguf_keys,
        )  # fmt: skip
        config = self.configure(settings, cut.context if cut.stateful else cut.max_tokens)
        names = self._names(source, settings)
        config = replace(
            config,
            tied=settings.is_tied(names.whole("head"), self.tied),
            slices=slices,
            max_tokens=cut.max_tokens,
            context=cut.context if cut.stateful else None,
        )
        settings.check()
        if config.activation not in get_args(Activation):
            raise SourceError(
                f"{source.label}: family {self.name!r} has the activation {config.activation!r}; "
                f"computed are {' and '.join(get_args(Activation))}."
            )
        if source.names:
            names.check(source, self.name, config)
        return config, names

    def layout(self, description: dict[str, Any], shard: str) -> AneLayout:
        return layout(DecoderConfig.from_description(description), shard)

    def wiring(self, shards: Sequence[str]) -> tuple[Wire, ...]:
        return blocks.wiring(shards, self.name)

    starts_whole = staticmethod(blocks.starts_whole)

    def spread(self, name: str, shape: tuple[int, ...]) -> Spread:
        """Norms near 1, small biases, and matrices that keep the variance of what enters."""
        return spread(name, shape, 1.0 - self.norm_offset)

    def _names(self, source: Source, settings: Settings) -> Names:
        if settings.is_gguf:
            gguf = {**GGUF, **self.gguf_names}
            return Names(gguf, fused=self.fused, paired=self.paired, own=self.own)
        parts = {**PUBLISHED, **self.names}
        root = find_root(source, self.root)
        own = {name: name for name in self.own}
        return Names(parts, root, self.fused, self.norm_offset, own=own)


def spread(name: str, shape: tuple[int, ...], norm: float = 1.0) -> Spread:
    if name.endswith(".bias"):
        return Spread(std=0.1)
    if len(shape) == 1:
        return Spread(std=0.1, mean=norm)
    if "embed_tokens" in name or "embeddings" in name:
        return Spread(1.0)
    return Spread.with_outliers(shape[-1] ** -0.5, outliers=0.03)


@cache
def in_transformers(kind: str) -> bool:
    """Whether transformers has a causal language model of a type, or of llama.cpp's name for it.

    Its table is read as text, for this is asked in runs that compute no reference.
    """
    file = distribution("transformers").locate_file("transformers/models/auto/modeling_auto.py")
    table = Path(str(file)).read_text("utf-8").partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")[2]
    types = re.findall(r'\(\s*"([\w.-]+)",', table.partition("\n)")[0])
    return kind in types or kind in (known.replace("_", "") for known in types)
