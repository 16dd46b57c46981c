"""`pytest-ane blame`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_budget, add_manifest_arithmetic, add_project
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.arithmetic import label

if TYPE_CHECKING:
    from pytest_ane.project.project import Project
    from pytest_ane.tools.blame.analysis import Blame

HELP = "trace a shard's error to weights and operations"
EXAMPLE = "pytest-ane blame int4.mlpackage --against fp16.mlpackage"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shards or a package, and a package's uncompressed form."""
    parser.add_argument(
        "shards", metavar="SHARDS", help="as --ane-shards takes them, or an .mlpackage"
    )
    parser.add_argument(
        "--against", type=Path, metavar="PACKAGE", help="of a package: its uncompressed form"
    )
    add_project(parser)
    add_manifest_arithmetic(parser)
    add_budget(parser)


def run(options: argparse.Namespace) -> Output:
    """The weights and operations that the error of selected shards, or of a package, comes from.

    Raises:
        AneError: there is nothing to compare with, or something cannot be built or run.
    """
    from pytest_ane.tools.blame.words import blame_shard, lines

    project = _project(options.shards, options.against, options.manifest, options.cache)
    blames: dict[str, Blame] = {}
    with project.use():
        for shard in project.shards:
            if len(project.shards) > 1:
                yield from ("", shard.qualified) if blames else (shard.qualified,)
            blame = blames[shard.qualified] = blame_shard(project, shard, options.arithmetic)
            yield from lines(blame)
    shown = {
        name: {**vars(blame), "arithmetic": label("typed" if blame.rules is None else "ane")}
        for name, blame in blames.items()
    }
    return {"shards": shown}


def _project(
    shards: str, against: Path | None, manifest: Path | None, cache: Path | None
) -> Project:
    from pytest_ane.manifest import package_manifest, select
    from pytest_ane.mlprogram.errors import ManifestError
    from pytest_ane.project.entries import expanded
    from pytest_ane.project.project import Project, read_project

    if (package := Path(shards)).suffix in (".mlpackage", ".mlmodelc"):
        alone = expanded(package_manifest(package.absolute()))
        plain = against and against.absolute()
        update = {"reference": plain, "uncompressed": plain} if plain else {}
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
