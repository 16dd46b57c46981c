"""`pytest-ane blame`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Manifest, Shard
    from pytest_ane.probes.cases import Case
    from pytest_ane.project.builder_model import BuiltModel
    from pytest_ane.project.models import OpenModel


def run(
    shards: str, *, against: Path | None, manifest: Path | None, cache: Path | None
) -> Iterator[str]:
    """Which weights and operations the error of selected shards, or of a package, comes from.

    Raises:
        AneError: there is nothing to compare with, or something cannot be built or run.
    """
    from pytest_ane.build import Cache
    from pytest_ane.core.digests import remembered

    kept = Cache(cache)
    with remembered(kept.root / "digests"):
        found, chosen = _chosen(shards, against, manifest)
        for i, shard in enumerate(chosen):
            if len(chosen) > 1:
                yield ("\n" if i else "") + shard.qualified
            yield from _of(shard, found, kept)


def _chosen(
    shards: str, against: Path | None, manifest: Path | None
) -> tuple[Manifest, tuple[Shard, ...]]:
    from pytest_ane.core.errors import ManifestError
    from pytest_ane.families import make_importable
    from pytest_ane.manifest import load, package_manifest, select

    if (package := Path(shards)).suffix in (".mlpackage", ".mlmodelc"):
        found = package_manifest(package.absolute())
        update = {} if against is None else {"reference": against.absolute()}
        return found, tuple(shard.model_copy(update=update) for shard in found.shards)
    if against is not None:
        raise ManifestError(
            f"--against {against} is for a package; what {shards} is held against stands in "
            "shards.toml."
        )
    found = load(manifest or Path("shards.toml"))
    make_importable(found)
    return found, tuple(select(found, shards))


def _of(shard: Shard, manifest: Manifest, cache: Cache) -> Iterator[str]:
    from pytest_ane.build import build_shard
    from pytest_ane.plugin.blame import executed, explain
    from pytest_ane.report.blame import lines

    @lru_cache(1)
    def model() -> OpenModel | BuiltModel:
        from pytest_ane.project.builder_model import BuiltModel
        from pytest_ane.project.models import OpenModel

        found = manifest.model_of(shard.model)
        return (BuiltModel if found.builder else OpenModel)(found, cache)

    own = shard.artifact is not None
    identity = {} if own else model().identity
    artifact = build_shard(shard, cache, identity=identity, model=lambda: model().language_model)

    def cases() -> list[Case]:
        return executed(shard, artifact) if own else model().cases(shard)

    yield from lines(explain(shard, artifact, cases=cases, cache=cache, model=model))
