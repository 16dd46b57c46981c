"""A model whose shards a builder makes, opened for a run."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pytest_ane.build import Cache
from pytest_ane.families import Inputs
from pytest_ane.families.user_code import BuilderModel
from pytest_ane.manifest import Model, Shard
from pytest_ane.probes.builder import builder_cases, builder_recording
from pytest_ane.probes.cases import Case


class BuiltModel:
    """A model without a family; the builder runs only when something is not in the cache."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model = model
        self.cache = cache
        self.language_model = BuilderModel(model)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the shards depend on: the common part of every cache key."""
        return self.language_model.identity(self.cache.root)

    def cases(self, shard: Shard) -> list[Case]:
        """A shard's recorded cases."""
        return builder_cases(
            self.cache, self.identity, shard, lambda: self.language_model.conversion(shard.id)
        )

    def recording(self, shard: Shard) -> tuple[Inputs, dict[str, Any]]:
        """A shard's recorded probes and outputs, as `builder_recording` has them."""
        return builder_recording(
            self.cache, self.identity, shard, lambda: self.language_model.conversion(shard.id)
        )
