"""Packages of candidates, compressed from uncompressed ones, and a backend that keeps them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from pytest_ane import make as build
from pytest_ane.backends import Backend, Runner
from pytest_ane.make import Artifact, Cache
from pytest_ane.make.scratch import temporary_files_in
from pytest_ane.manifest import Settings, Shard, Uncompressed
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.project.models import OpenModel
from pytest_ane.tools._recommend.menu import Menu
from pytest_ane.tools._recommend.units import Choice, Unit, shard_settings


class Builds:
    """One model's shards under any compression.

    Args:
        opened: the model.
        cache: where shards are kept; what a killed search built is found there again.
        menu: the settings.
    """

    def __init__(self, opened: OpenModel, cache: Cache, menu: Menu) -> None:
        self.shards: Mapping[str, Shard] = {shard.id: shard for shard in opened.model.shards}
        self.menu = menu
        self._opened, self._cache = opened, cache
        self._plain: dict[str, Artifact] = {}

    def settings(
        self, units: Mapping[str, tuple[Unit, ...]], choice: Choice
    ) -> dict[str, Settings]:
        """The compression of every shard under a choice, by id; `units` are the shards'."""
        return {
            id: shard_settings(units[id], choice, self.menu, shard.requested.keep)
            for id, shard in self.shards.items()
        }

    def all_with(self, shard: str, setting: str) -> Artifact:
        """A shard with one setting for all weights but those that the manifest keeps."""
        chosen, keep = self.menu[setting], list(self.shards[shard].requested.keep)
        return self.build(shard, type(chosen).model_validate(setting_keys(chosen) | {"keep": keep}))

    def build(self, shard: str, settings: Settings) -> Artifact:
        """A shard with these settings, from the cache or compressed now."""
        return build.build_shard(
            self.shards[shard].model_copy(update={"compression": settings}),
            self._cache,
            identity=self._opened.identity,
            model=lambda: self._opened.language_model,
            source=self.plain(shard),
        )

    def plain(self, shard: str) -> Artifact:
        """A shard with all weights in fp16, converted once."""
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
        override = {"weights": unit.glob} | setting_keys(self.menu[setting])
        table = {"method": "none", "overrides": [override], "keep": list(shard.requested.keep)}
        alone = shard.model_copy(update={"compression": Uncompressed.model_validate(table)})
        plain = self.plain(unit.shard)
        with tempfile.TemporaryDirectory(prefix="pytest-ane-") as folder:
            # coremltools' own temporary files go with the folder.
            with temporary_files_in(Path(folder)):
                artifact = build.compressed(alone, plain, Path(folder))
            yield artifact


class LoadedBackend:
    """A backend in which the runners of some artifacts stay loaded: stacks share most shards."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.on_device = backend.name, backend.on_device
        self._backend = backend
        self._kept: frozenset[Path] = frozenset()
        self._runners: dict[tuple[Path, str | None], Runner] = {}

    def keep(self, artifacts: Iterable[Path]) -> None:
        """Let the runners of these artifacts stay from now on; all others are dropped."""
        self._kept = frozenset(artifacts)
        self._runners = {key: run for key, run in self._runners.items() if key[0] in self._kept}

    def load(self, artifact: Path, function: str | None = None) -> Runner:
        """A runner, from memory or loaded now."""
        key = artifact, function
        runner = self._runners.get(key) or self._backend.load(artifact, function)
        if artifact in self._kept:
            self._runners[key] = runner
        return runner

    @cached_property
    def _simulated(self) -> LoadedBackend | None:
        backend = self._backend.simulated()
        return None if backend is None else LoadedBackend(backend)

    def simulated(self) -> LoadedBackend | None:
        """The same in the ANE's arithmetic, with runners of its own."""
        if self._simulated is not None:
            self._simulated.keep(self._kept)
        return self._simulated

    @property
    def rule_shares(self) -> RuleShares:
        """By which rules the runners that are loaded have computed so far."""
        shares: RuleShares = getattr(self._backend, "rule_shares", RuleShares())
        return shares

    def provenance(self) -> dict[str, str]:
        """Provenance of the backend that runs."""
        return self._backend.provenance()
