"""Where a shard's error comes from, beside its verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.analysis.blame import Blame, blame
from pytest_ane.backends import CpuBackend
from pytest_ane.build import Artifact, Cache, build_shard
from pytest_ane.core.errors import AneError
from pytest_ane.core.verdict import Verdict
from pytest_ane.manifest import Shard, Uncompressed
from pytest_ane.mil import read_model
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.probes.cases import Case
from pytest_ane.probes.package import package_cases
from pytest_ane.project.builder_model import BuiltModel
from pytest_ane.project.models import OpenModel
from pytest_ane.report.blame import lines

TOLD = "ane.blame"
"""The property of a test that holds what was found."""
_AT_ONCE = 3
"""Failed shards that one process explains: each has its uncompressed package built."""
_COUNT = pytest.StashKey[int]()


def is_wanted(verdict: Verdict, when: str) -> bool:
    """Whether a verdict is to be explained: `always`, `failed` or `never`."""
    return verdict.gate == "fidelity" and (
        when == "always" or (when == "failed" and verdict.status == "failed")
    )


def tell(item: pytest.Item, space: Workspace, verdict: Verdict) -> str:
    """What a shard's error comes from, in lines; in one why that is not known."""
    done = item.config.stash.get(_COUNT, 0)
    if space.blame != "always" and done >= _AT_ONCE:
        return (
            f"{done} shards were explained already; for this one run: "
            f"pytest-ane blame {verdict.subject}"
        )
    item.config.stash[_COUNT] = done + 1
    try:
        shard = next(s for s in space.shards if s.qualified == verdict.subject)
        artifact = space.artifact(shard)
        with space.progress.showing(f"looking for what is to blame in {shard.qualified}"):
            found = explain(
                shard,
                artifact,
                cases=lambda: _cases(space, shard, artifact),
                cache=space.cache,
                model=lambda: space.model(shard.model),
            )
        return "\n".join(lines(found, on_device=space.backend.on_device))
    except AneError as error:
        return f"What is to blame was not found: {error}"
    # The verdict stands, whatever goes wrong here.
    except Exception as error:
        return f"What is to blame was not found, for a fault of ours: {error!r}"


def explain(
    shard: Shard,
    artifact: Artifact,
    *,
    cases: Callable[[], list[Case]],
    cache: Cache,
    model: Callable[[], OpenModel | BuiltModel],
) -> Blame:
    """Ask a shard's weights and operations; its uncompressed form is built if need be.

    Raises:
        AneError: the packages or the reference cannot be had or run.
    """
    plain, without = _uncompressed(shard, cache, model)
    program = read_model(artifact.path)
    original = None if plain is None else read_model(plain)
    return blame(program, original, cases(), without=without)


def executed(shard: Shard, artifact: Artifact) -> list[Case]:
    """Cases of an own package, with the reference package run by the executor too."""
    reference = shard.reference if isinstance(shard.reference, Path) else None
    return package_cases(CpuBackend(), artifact.path, reference, shard.probes)


def _cases(space: Workspace, shard: Shard, artifact: Artifact) -> list[Case]:
    """The gate's own cases, but for references that a device has run."""
    if space.backend.on_device and shard.reference != "float32":
        return executed(shard, artifact)
    return space.cases(shard, artifact)


def _uncompressed(
    shard: Shard, cache: Cache, model: Callable[[], OpenModel | BuiltModel]
) -> tuple[Path | None, str]:
    """A shard's uncompressed package, or why there is none."""
    if shard.artifact is None:
        opened = model()
        plain = shard.model_copy(update={"compression": Uncompressed()})
        built = build_shard(
            plain, cache, identity=opened.identity, model=lambda: opened.language_model
        )
        return built.path, ""
    if isinstance(shard.reference, Path) and shard.reference.suffix in (".mlpackage", ".mlmodelc"):
        return shard.reference, ""
    return None, (
        f"{shard.qualified} has no uncompressed package to take weights from; name one as its "
        "'reference', or with --against."
    )
