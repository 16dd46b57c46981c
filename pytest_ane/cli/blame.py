"""`pytest-ane blame`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_ane.project.project import Project


def run(
    shards: str, *, against: Path | None, manifest: Path | None, cache: Path | None
) -> Iterator[str]:
    """Which weights and operations the error of selected shards, or of a package, comes from.

    Args:
        shards: a selection, or a package.
        against: for a package, the uncompressed one.
        manifest: default `shards.toml` here.
        cache: the cache folder.

    Raises:
        AneError: there is nothing to compare with, or something cannot be built or run.
    """
    from pytest_ane.project.blame import blame_shard
    from pytest_ane.report.blame import lines

    project = _project(shards, against, manifest, cache)
    with project.use():
        for i, shard in enumerate(project.shards):
            if len(project.shards) > 1:
                yield ("\n" if i else "") + shard.qualified
            yield from lines(blame_shard(project, shard))


def _project(
    shards: str, against: Path | None, manifest: Path | None, cache: Path | None
) -> Project:
    from pytest_ane.core.errors import ManifestError
    from pytest_ane.manifest import package_manifest, select
    from pytest_ane.project.project import Project, read_project

    if (package := Path(shards)).suffix in (".mlpackage", ".mlmodelc"):
        alone = package_manifest(package.absolute())
        update = {} if against is None else {"reference": against.absolute()}
        held = tuple(shard.model_copy(update=update) for shard in alone.shards)
        return Project(alone, held, cache, backend_name="cpu")
    if against is not None:
        raise ManifestError(
            f"--against {against} is for a package; what {shards} is held against stands in "
            "shards.toml."
        )
    project = read_project(manifest, cache, backend_name="cpu")
    project.shards = select(project.manifest, shards)
    return project
