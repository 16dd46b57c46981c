"""Packages of candidates: compressed from uncompressed ones, which are converted once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pytest_ane import build
from pytest_ane.build import Artifact, Cache
from pytest_ane.families import LanguageModel, Wire
from pytest_ane.manifest import Model, Settings, Shard, Uncompressed
from pytest_ane.probes.cases import Case
from pytest_ane.recommend.menu import Menu
from pytest_ane.recommend.units import Choice, Unit, compression, said


class Opened(Protocol):
    """What is needed of an opened model (`plugin.models.OpenModel`)."""

    model: Model

    @property
    def identity(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def wiring(self) -> tuple[Wire, ...]: ...  # noqa: D102
    @property
    def language_model(self) -> LanguageModel: ...  # noqa: D102
    def cases(self, shard: Shard) -> list[Case]: ...  # noqa: D102


class Builds:
    """One model's shards under any compression.

    Args:
        opened: the model.
        cache: where shards are kept; what a killed search built is found there again.
        menu: the settings.
    """

    def __init__(self, opened: Opened, cache: Cache, menu: Menu) -> None:
        self.shards: Mapping[str, Shard] = {shard.id: shard for shard in opened.model.shards}
        self.menu = menu
        self._opened, self._cache = opened, cache
        self._plain: dict[str, Artifact] = {}

    def asked(self, units: Mapping[str, tuple[Unit, ...]], choice: Choice) -> dict[str, Settings]:
        """What the manifest has to say of every shard; `units` are the shards' by id."""
        return {
            id: compression(units[id], choice, self.menu, shard.requested.keep)
            for id, shard in self.shards.items()
        }

    def all_with(self, shard: str, setting: str) -> Artifact:
        """A shard with one setting for all weights but those that the manifest keeps."""
        chosen, keep = self.menu[setting], list(self.shards[shard].requested.keep)
        return self.build(shard, type(chosen).model_validate(said(chosen) | {"keep": keep}))

    def build(self, shard: str, asked: Settings) -> Artifact:
        """A shard as asked."""
        wanted = self.shards[shard].model_copy(update={"compression": asked})
        return build.build_shard(
            wanted,
            self._cache,
            identity=self._opened.identity,
            model=lambda: self._opened.language_model,
            source=self.plain(shard),
        )

    def plain(self, shard: str) -> Artifact:
        """A shard in fp16."""
        if shard not in self._plain:
            self._plain[shard] = build.uncompressed(
                self.shards[shard],
                self._cache,
                identity=self._opened.identity,
                model=lambda: self._opened.language_model,
            )
        return self._plain[shard]

    @contextmanager
    def only(self, unit: Unit, setting: str) -> Iterator[Artifact]:
        """A shard with one unit compressed and everything else in fp16; gone afterwards."""
        shard = self.shards[unit.shard]
        override = {"weights": unit.glob} | said(self.menu[setting])
        asked = {
            "method": "none",
            "overrides": [override],
            "keep": list(shard.requested.keep),
        }
        wanted = shard.model_copy(update={"compression": Uncompressed.model_validate(asked)})
        with tempfile.TemporaryDirectory(prefix="pytest-ane-") as folder:
            yield build.compressed(wanted, self.plain(unit.shard), Path(folder))
