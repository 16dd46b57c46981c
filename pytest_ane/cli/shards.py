"""A model's shards for commands that look at one of each kind: kinds, layouts, packages."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.analysis.costs import largest_tokens
from pytest_ane.build import Cache, build_shard
from pytest_ane.build.record import PACKAGE
from pytest_ane.build.shard import artifact_key
from pytest_ane.cli.stack import tell
from pytest_ane.core.digests import key_digest
from pytest_ane.manifest import Model, Shard
from pytest_ane.project.builder_model import BuiltModel
from pytest_ane.project.models import OpenModel


class Shards:
    """A model's shards: their kinds and layouts, and their packages."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self._model, self._cache = model, cache
        self._opened = (BuiltModel if model.builder else OpenModel)(model, cache)
        family = self._opened if isinstance(self._opened, OpenModel) and model.family else None
        wires = family.wiring if family else ()
        self._layout = (lambda shard: family.language_model.layout(shard)) if family else str
        self._kinds = {wire.shard: wire.kind for wire in wires}
        order = [wire.shard for wire in wires]
        self.in_order = sorted(
            model.shards, key=lambda s: order.index(s.id) if s.id in order else len(order)
        )

    @property
    def most(self) -> int:
        """The largest T of all that have one: the manifest's, or less where a package takes less.

        Packages of one's own say themselves what they take.
        """
        paths = [shard.artifact for shard in self._model.shards if shard.artifact is not None]
        found = [largest_tokens(path, self._model.max_tokens) for path in paths]
        return min((t for t in found if t > 1), default=1 if found else self._model.max_tokens)

    def kind(self, shard: Shard) -> str:
        """Of its wire; its own id where no family knows it."""
        return self._kinds.get(shard.id, shard.id)

    def layout(self, shard: Shard) -> object:
        """How it is fed; shards of a family that are fed alike are taken to cost the same."""
        return self._layout(shard.id)

    def built(self, shard: Shard) -> Path | None:
        """Its package, if it is in the cache."""
        if shard.artifact is not None:
            return self.build(shard)
        key = key_digest(artifact_key(shard, self._opened.identity))
        folder = self._cache.get("artifacts", key)
        return None if folder is None else folder / PACKAGE

    def build(self, shard: Shard) -> Path:
        """Its package, built now."""
        tell(f"building {shard.qualified}")
        identity = {} if shard.artifact else self._opened.identity
        return build_shard(
            shard, self._cache, identity=identity, model=lambda: self._opened.language_model
        ).path
