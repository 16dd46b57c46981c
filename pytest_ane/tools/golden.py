"""`pytest-ane golden`: record a reference's outputs as golden tensors."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from pytest_ane.backends import Backend, get_backend
from pytest_ane.cli.options import add_function, add_shared
from pytest_ane.cli.output import Output
from pytest_ane.manifest import GOLDEN, Input, Probes, Shard, select
from pytest_ane.mlprogram.errors import GoldenError
from pytest_ane.mlprogram.model import SUFFIXES, counterpart
from pytest_ane.probes.cases import as_array
from pytest_ane.probes.error_budget import run_cases
from pytest_ane.probes.golden import write_golden
from pytest_ane.probes.package import package_cases
from pytest_ane.probes.recording import to_tensors
from pytest_ane.project.models import OpenModel
from pytest_ane.project.project import default_backend, identities, read_project

EXAMPLE = "pytest-ane golden record L01 --out L01.safetensors"
Recorded: TypeAlias = tuple[Mapping[str, Any], dict[str, Any]]
"""Tensors and metadata of a file of golden tensors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shard or package, the file, and what runs a package."""
    add = parser.add_argument
    add("action", choices=("record",), help="run the reference and store its outputs")
    add("what", help="a shard of the manifest, or a package")
    add("--out", type=Path, required=True, metavar="FILE", help="the .safetensors or .npz to write")
    add("--overwrite", action="store_true", help="replace a file at --out")
    add("--package", type=Path, help="for a shard: run this in place of its float32 module")
    add_function(parser)
    add_shared(parser, "manifest", "cache", "memory", "time")
    words = "what runs a package (default: Core ML on a Mac, else the CPU executor)"
    add_shared(parser, "backend", help=words, default="auto")


def run(options: argparse.Namespace) -> Output:
    """Record probes with the outputs of a float32 module or of a package.

    A package that no shard of the manifest has is probed with Gaussian inputs. Where anything is
    wrong, nothing is written.
    """
    out: Path = options.out
    if out.suffix not in GOLDEN:
        raise GoldenError(f"--out {out}: golden tensors are a .safetensors or an .npz file.")
    if out.exists() and not options.overwrite:
        raise GoldenError(f"{out} exists; --overwrite replaces it.")
    if options.what.rstrip("/").endswith(SUFFIXES):
        if options.package is not None:
            raise GoldenError("--package is for a shard of the manifest; name one package.")
        probes, package = Probes(kinds=("gaussian",)), Path(options.what)
        tensors, metadata = _of_package(options, package, probes, None, options.function)
    else:
        tensors, metadata = _of_shard(options)
    write_golden(out, dict(tensors), metadata)
    size = out.stat().st_size
    yield f"{out}: {len(metadata['probes'])} probes, {size:,} bytes"
    yield f"recorded from {metadata['origin']}"
    return {"file": out, "bytes": size, **metadata}


def _backend(options: argparse.Namespace) -> Backend:
    return get_backend(default_backend() if options.backend == "auto" else options.backend)


def _of_shard(options: argparse.Namespace) -> Recorded:
    project, package = read_project(options.manifest, options.cache), options.package
    if options.function is not None:
        raise GoldenError("--function is for a package; name a shard's as SHARD[FUNCTION].")
    shards = select(project.manifest, options.what)
    if len(shards) != 1:
        raise GoldenError(f"{options.what} names {len(shards)} shards; record one at a time.")
    (shard,) = shards
    model = project.model(shard.model)
    if isinstance(model, OpenModel) and shard.family:
        return _of_family(model, shard, options)
    if package is not None:
        function = counterpart(package, shard.function)
        return _of_package(options, package, shard.probes, shard.inputs, function)
    if isinstance(model, OpenModel):
        raise GoldenError(
            f"{shard.qualified}: has no float32 module; name a package to run with --package."
        )
    tensors, metadata = model.recording(shard)
    # Golden tensors of a package begin on fresh states; the last probe may be on filled ones.
    filled = {name.partition(".")[0] for name in tensors if name.split(".")[1] == "state"}
    tensors = {name: x for name, x in tensors.items() if name.partition(".")[0] not in filled}
    same = {"same_module": metadata["same_module"]}
    listed = metadata["probes"][: len(metadata["probes"]) - len(filled)]
    probes = [{"kind": kind, "name": name, **same} for kind, name, *_ in listed]
    outputs = metadata["ports"]["outputs"]
    origin = f"the float32 module of {shard.qualified}"
    return tensors, {"probes": probes, "outputs": outputs, "origin": origin}


def _of_family(model: OpenModel, shard: Shard, options: argparse.Namespace) -> Recorded:
    probes, layout = model.probes(shard)
    origin = f"the float32 module of {shard.qualified}"
    if options.package is not None:
        backend = _backend(options)
        runs = run_cases(backend.load(options.package), [probe.case(layout) for probe in probes])
        pairs = zip(probes, runs, strict=True)
        probes = [replace(probe, expected=run.rows["y"], same_module=False) for probe, run in pairs]
        origin = _ran(options.package, backend)
    tensors, listed = to_tensors(probes)
    return tensors, {"probes": listed, "origin": origin}


def _of_package(
    options: argparse.Namespace,
    package: Path,
    probes: Probes,
    tables: Mapping[str, Input] | None,
    function: str | None,
) -> Recorded:
    backend = _backend(options)
    every = package_cases(backend, package, None, probes, tables, function)
    cases = [case for case in every if not case.states]
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
    return tensors, {"probes": listed, "origin": _ran(package, backend, function)}


def _ran(package: Path, backend: Backend, function: str | None = None) -> str:
    by = ", ".join(f"{key} {value}" for key, value in sorted(backend.provenance().items()))
    return f"{package.name} ({', '.join(identities(package, function))}), run by {by}"
