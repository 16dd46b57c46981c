"""A family of decoders: the names of its files, and how its configuration is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_ane.models.families import blocks
from pytest_ane.models.families.base import Cut, Wire
from pytest_ane.models.families.decoder.config import DecoderConfig
from pytest_ane.models.families.decoder.model import DecoderModel, layout
from pytest_ane.models.families.decoder.names import GGUF, PUBLISHED, Names, Parts, find_root
from pytest_ane.models.families.decoder.settings import Settings
from pytest_ane.models.families.layout import AneLayout
from pytest_ane.models.sources import Source, Spread

_CORE = 3
"""Raised when a change of the core alters what the shards of all families compute."""


@dataclass(frozen=True)
class DecoderFamily:
    """What `pytest_ane.models.families.base.Family` asks, of one kind of decoder.

    Attributes:
        name: as manifests have it.
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
    revision: int = 1

    @property
    def VERSION(self) -> str:
        """Part of every cache key: raised when a change alters what a shard computes."""
        return f"{self.name}/{_CORE}.{self.revision}"

    @property
    def published(self) -> Sequence[str]:
        """Values of `model_type` that are this family's."""
        return self.types or (self.name,)

    @property
    def converted(self) -> Sequence[str]:
        """Values of GGUF's `general.architecture` that are this family's."""
        return self.architectures or self.published

    def open_model(self, source: Source, cut: Cut) -> DecoderModel:
        """See a checkpoint, a GGUF file or a seed as a model cut into these shards.

        Raises:
            SourceError: another architecture or variant, or a block the model does not have.
            ManifestError: a shard id that is neither a block nor a head slice, or a slice left
                out.
        """
        ids = [wire.shard for wire in self.wiring(cut.shards)]
        slices = blocks.slices(ids)
        config, names = self.read(source, cut, slices)
        blocks.check_depth(source.label, ids, len(config.layers))
        if source.names:
            names.require(source, config, ids)
        return DecoderModel(source, config, names, cut)

    def read(self, source: Source, cut: Cut, slices: int = 1) -> tuple[DecoderConfig, Names]:
        """A source's configuration, and its tensors' names.

        Raises:
            SourceError: of another architecture, of a variant that is not computed, or absurd.
        """
        settings = Settings(
            source,
            self.name,
            self.published,
            self.converted,
            self.synthetic,
            self.defaults,
            self.gguf_keys,
        )
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
        if source.names:
            names.check(source, self.name, config)
        return config, names

    def layout(self, description: dict[str, Any], shard: str) -> AneLayout:
        """A shard's layout from `DecoderModel.description`, without the weights."""
        return layout(DecoderConfig.of(description), shard)

    def wiring(self, shards: Sequence[str]) -> tuple[Wire, ...]:
        """Blocks `L00`, `L01`... one after another, then head slices `head.0`, `head.1`...

        Raises:
            ManifestError: a shard id is neither.
        """
        return blocks.wiring(shards, self.name)

    def starts_whole(self, shards: Sequence[str]) -> bool:
        """Whether the blocks form a contiguous prefix of the model."""
        return blocks.starts_whole(shards)

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
    """As `DecoderFamily.spread`, with the mean of stored norms; encoders' weights are alike."""
    if name.endswith(".bias"):
        return Spread(std=0.1)
    if len(shape) == 1:
        return Spread(std=0.1, mean=norm)
    if "embed_tokens" in name or "embeddings" in name:
        return Spread(1.0)
    return Spread.of(shape[-1] ** -0.5, outliers=0.03)
