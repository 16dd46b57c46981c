"""`pytest-ane golden record`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_backend, add_budget, add_function, add_project
from pytest_ane.cli.output import Output
from pytest_ane.mlprogram.errors import GoldenError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_ane.backends import Backend, Runner
    from pytest_ane.manifest import Input, Manifest, Probes, Shard
    from pytest_ane.probes.cases import Case
    from pytest_ane.project.models import OpenModel

HELP = "record a reference's outputs as golden tensors"
EXAMPLE = "pytest-ane golden record L01 --out L01.safetensors"
Recorded = tuple[dict[str, Any], dict[str, Any]]
"""Tensors and metadata of a file of golden tensors."""
_PACKAGES = (".mlpackage", ".mlmodelc")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shard or package, the file, and what runs a package."""
    parser.add_argument(
        "action", choices=("record",), help="run the reference and store its outputs"
    )
    parser.add_argument("what", help="a shard of the manifest, or a package")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the .safetensors or .npz to write"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file at --out")
    parser.add_argument(
        "--package", type=Path, help="for a shard: run this in place of its float32 module"
    )
    add_function(parser)
    add_project(parser)
    add_budget(parser)
    add_backend(
        parser,
        "what runs a package (default: Core ML on a Mac, else the CPU executor)",
        default="auto",
    )


def run(options: argparse.Namespace) -> Output:
    """Record probes with the outputs of a float32 module or of a package.

    A package that no shard of the manifest has is probed with Gaussian inputs.

    Raises:
        AneError: one sentence; nothing is written then.
    """
    from pytest_ane.manifest import GOLDEN, Probes
    from pytest_ane.probes.golden import write_golden

    out: Path = options.out
    if out.suffix not in GOLDEN:
        raise GoldenError(f"--out {out}: golden tensors are a .safetensors or an .npz file.")
    if out.exists() and not options.overwrite:
        raise GoldenError(f"{out} exists; --overwrite replaces it.")
    if options.what.rstrip("/").endswith(_PACKAGES):
        if options.package is not None:
            raise GoldenError("--package is for a shard of the manifest; name one package.")
        package, probes = Path(options.what), Probes(kinds=("gaussian",))
        runs_package = _backend(options.backend)
        tensors, metadata = _of_package(runs_package, package, probes, function=options.function)
    else:
        tensors, metadata = _of_shard(options)
    write_golden(out, tensors, metadata)
    size = out.stat().st_size
    yield f"{out}: {len(metadata['probes'])} probes, {size:,} bytes"
    yield f"recorded from {metadata['origin']}"
    return {"file": out, "bytes": size, **metadata}


def _of_shard(options: argparse.Namespace) -> Recorded:
    from pytest_ane.mlprogram.model import counterpart
    from pytest_ane.project.models import OpenModel
    from pytest_ane.project.project import read_project

    project, package = read_project(options.manifest, options.cache), options.package
    if options.function is not None:
        raise GoldenError("--function is for a package; name a shard's as SHARD[FUNCTION].")
    shard = _only_shard(project.manifest, options.what)
    model = project.model(shard.model)
    if isinstance(model, OpenModel) and shard.family:
        return _of_family(model, shard, package, options.backend)
    if package is not None:
        function = counterpart(package, shard.function)
        return _of_package(_backend(options.backend), package, shard.probes, shard.inputs, function)
    if isinstance(model, OpenModel):
        raise GoldenError(
            f"{shard.qualified}: has no float32 module; name a package to run with --package."
        )
    tensors, metadata = model.recording(shard)
    probes = [{"kind": kind, "name": name} for kind, name, *_ in metadata["probes"]]
    outputs = metadata["ports"]["outputs"]
    origin = f"the float32 module of {shard.qualified}"
    return dict(tensors), {"probes": probes, "outputs": outputs, "origin": origin}


def _only_shard(manifest: Manifest, selection: str) -> Shard:
    from pytest_ane.manifest import select

    shards = select(manifest, selection)
    if len(shards) != 1:
        raise GoldenError(f"{selection} names {len(shards)} shards; record one at a time.")
    return shards[0]


def _of_family(model: OpenModel, shard: Shard, package: Path | None, backend: str) -> Recorded:
    """Hidden states of a family's shard; a package is run on what enters the reference."""
    from dataclasses import replace

    from pytest_ane.probes.recording import to_tensors

    probes, layout = model.probes(shard)
    origin = f"the float32 module of {shard.qualified}"
    if package is not None:
        runs_package = _backend(backend)
        runner = runs_package.load(package)
        probes = [replace(p, expected=_answer(runner, p.case(layout))) for p in probes]
        origin = _ran(package, runs_package)
    tensors, listed = to_tensors(probes)
    return tensors, {"probes": listed, "origin": origin}


def _answer(runner: Runner, case: Case) -> Any:
    """A package's outputs for a case's calls on one state, `[T, C]`."""
    from pytest_ane.probes.error_budget import run_cases

    (run,) = run_cases(runner, [case])
    return run.rows["y"]


def _of_package(
    backend: Backend,
    package: Path,
    probes: Probes,
    tables: Mapping[str, Input] | None = None,
    function: str | None = None,
) -> Recorded:
    """A package's own inputs and outputs."""
    from pytest_ane.probes.cases import as_array
    from pytest_ane.probes.package import package_cases

    cases = package_cases(backend, package, None, probes, tables, function)
    runner = backend.load(package, function)
    tensors: dict[str, Any] = {}
    for i, case in enumerate(cases):
        state = runner.make_state()
        for turn, inputs in enumerate(case.calls):
            outputs = runner.predict(inputs, state)
            at = f"{i}.{turn}" if len(case.calls) > 1 else f"{i}"
            tensors |= {f"{at}.in.{name}": array for name, array in inputs.items()}
            tensors |= {f"{at}.out.{name}": as_array(x) for name, x in outputs.items()}
    listed = [{"kind": case.kind, "name": case.name} for case in cases]
    return tensors, {"probes": listed, "origin": _ran(package, backend)}


def _ran(package: Path, backend: Backend) -> str:
    from pytest_ane.mlprogram.digests import tree_digest

    by = ", ".join(f"{key} {value}" for key, value in sorted(backend.provenance().items()))
    return f"{package.name} (digest {tree_digest(package)[:12]}), run by {by}"


def _backend(name: str) -> Backend:
    from pytest_ane.backends import get_backend
    from pytest_ane.project.project import default_backend

    return get_backend(default_backend() if name == "auto" else name)
