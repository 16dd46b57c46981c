"""`pytest-ane golden record`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.core.errors import GoldenError

if TYPE_CHECKING:
    from pytest_ane.backends import Backend, Runner
    from pytest_ane.manifest import Manifest, Probes, Shard
    from pytest_ane.probes.cases import Case
    from pytest_ane.project.models import OpenModel

Recorded = tuple[dict[str, Any], dict[str, Any]]
_PACKAGES = (".mlpackage", ".mlmodelc")


def run(
    what: str,
    out: Path,
    *,
    package: Path | None,
    manifest: Path | None,
    cache: Path | None,
    backend: str,
) -> Iterator[str]:
    """Record probes with what a float32 module or a package makes of them.

    Args:
        what: a shard of the manifest, or a package, which is then probed with Gaussian inputs.
        out: the safetensors file to write.
        package: for a shard, what is run in place of its float32 module.
        manifest: default `shards.toml` here.
        cache: the cache folder.
        backend: `auto`, `cpu` or `coreml`: what runs a package.

    Raises:
        AneError: one sentence; nothing is written then.
    """
    from pytest_ane.manifest import Probes
    from pytest_ane.probes.golden import write_golden

    if out.suffix != ".safetensors":
        raise GoldenError(f"--out {out}: golden tensors are a .safetensors file.")
    if what.rstrip("/").endswith(_PACKAGES):
        if package is not None:
            raise GoldenError("--package is for a shard of the manifest; name one package.")
        recorded = _of_package(_backend(backend), Path(what), Probes(kinds=("gaussian",)))
    else:
        recorded = _of_shard(what, manifest, cache, package, backend)
    tensors, metadata = recorded
    write_golden(out, tensors, metadata)
    yield f"{out}: {len(metadata['probes'])} probes, {out.stat().st_size:,} bytes"
    yield f"recorded from {metadata['origin']}"


def _of_shard(
    what: str, manifest: Path | None, cache: Path | None, package: Path | None, backend: str
) -> Recorded:
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.project import read_project

    project = read_project(manifest, cache)
    shard = _one(project.manifest, what)
    model = project.model(shard.model)
    if isinstance(model, OpenModel) and shard.family:
        return _of_family(model, shard, package, backend)
    if package is not None:
        return _of_package(_backend(backend), package, shard.probes)
    if isinstance(model, OpenModel):
        raise GoldenError(
            f"{shard.qualified}: has no float32 module; name a package to run with --package."
        )
    tensors, metadata = model.recording(shard)
    probes = [{"kind": kind, "name": name} for kind, name, _ in metadata["probes"]]
    outputs = [{"name": name, "shape": shape} for name, shape in metadata["outputs"]]
    origin = f"the float32 module of {shard.qualified}"
    return dict(tensors), {"probes": probes, "outputs": outputs, "origin": origin}


def _one(manifest: Manifest, what: str) -> Shard:
    from pytest_ane.manifest import select

    shards = select(manifest, what)
    if len(shards) != 1:
        raise GoldenError(f"{what} names {len(shards)} shards; record one at a time.")
    return shards[0]


def _of_family(model: OpenModel, shard: Shard, package: Path | None, backend: str) -> Recorded:
    """Hidden states of a family's shard; a package is run on what enters the reference."""
    from dataclasses import replace

    from pytest_ane.probes.hidden import to_tensors

    probes, layout = model.probes(shard)
    origin = f"the float32 module of {shard.qualified}"
    if package is not None:
        runs = _backend(backend)
        runner = runs.load(package)
        probes = [replace(p, expected=_answer(runner, p.case(layout))) for p in probes]
        origin = _ran(package, runs)
    tensors, listed = to_tensors(probes)
    return tensors, {"probes": listed, "origin": origin}


def _answer(runner: Runner, case: Case) -> Any:
    """A package's outputs for a case's calls on one state, `[T, C]`."""
    import numpy as np

    state = runner.make_state()
    return np.concatenate([case.rows(runner.predict(call, state))["y"] for call in case.calls])


def _of_package(backend: Backend, package: Path, probes: Probes) -> Recorded:
    """A package's own inputs and outputs."""
    from pytest_ane.probes.package import package_cases

    cases, runner = package_cases(backend, package, None, probes), backend.load(package)
    tensors: dict[str, Any] = {}
    for i, case in enumerate(cases):
        (inputs,) = case.calls
        outputs = runner.predict(inputs, runner.make_state())
        tensors |= {f"{i}.in.{name}": array for name, array in inputs.items()}
        tensors |= {f"{i}.out.{name}": array for name, array in outputs.items()}
    listed = [{"kind": case.kind, "name": case.name} for case in cases]
    return tensors, {"probes": listed, "origin": _ran(package, backend)}


def _ran(package: Path, backend: Backend) -> str:
    from pytest_ane.core.digests import tree_digest

    by = ", ".join(f"{key} {value}" for key, value in sorted(backend.provenance().items()))
    return f"{package.name} (digest {tree_digest(package)[:12]}), run by {by}"


def _backend(name: str) -> Backend:
    from pytest_ane.backends import get_backend
    from pytest_ane.project.project import default_backend

    return get_backend(default_backend() if name == "auto" else name)
