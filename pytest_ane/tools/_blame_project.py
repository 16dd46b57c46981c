"""Where a shard's error comes from: its packages and cases, for `analysis.blame`."""

from __future__ import annotations

from pathlib import Path

from pytest_ane.backends import CpuBackend
from pytest_ane.make import Artifact, uncompressed_package
from pytest_ane.manifest import Shard, Uncompressed
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.model import counterpart, read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.project.project import Project
from pytest_ane.tools._blame_analysis import Blame, blame


def blame_shard(project: Project, shard: Shard, arithmetic: Arithmetic | None = None) -> Blame:
    """Find the weights and operations that a shard's error comes from.

    All is run by the CPU executor, references included; the uncompressed package is built if need
    be.

    Args:
        project: builds, and opens references.
        shard: whose error.
        arithmetic: how its package is computed; by default `ane` where the shard's names it.

    Raises:
        AneError: the packages or the reference cannot be had or run.
    """
    artifact = project.artifact(shard)
    program = read_model(artifact.path, function=shard.function)
    plain, why_none = _uncompressed(project, shard, artifact, program)
    return blame(
        program,
        None if plain is None else read_model(plain, function=counterpart(plain, shard.function)),
        project.cases(shard, artifact, CpuBackend()),
        without=why_none,
        arithmetic=arithmetic or ("ane" if "ane" in shard.arithmetic else "typed"),
    )


def _uncompressed(
    project: Project, shard: Shard, artifact: Artifact, program: MLModel
) -> tuple[Path | None, str]:
    """A shard's uncompressed package, or why there is none."""
    if shard.artifact is None:
        plain = shard.model_copy(update={"compression": Uncompressed()})
        return project.build(plain).path, ""
    if (package := uncompressed_package(shard, artifact, program)) is not None:
        return package, ""
    return None, (
        f"{shard.qualified} has no uncompressed package to take weights from; name one as its "
        "'uncompressed', or with --against."
    )
