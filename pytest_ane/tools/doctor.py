"""`pytest-ane doctor`: check what a run needs: versions, disk, models."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_ane import __version__
from pytest_ane.backends.coreml.machine import Machine, has_native, without_ane
from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Failed, Output
from pytest_ane.gates.verdict import counted
from pytest_ane.make import Cache
from pytest_ane.make.disk import PlanCache, amount, default_builds, plan_caches, temporary_folder
from pytest_ane.manifest import Manifest, Model
from pytest_ane.mlprogram.errors import AneError, CacheError, SourceError
from pytest_ane.mlprogram.memory import available_memory
from pytest_ane.models.families.own import make_importable
from pytest_ane.project.choose import check_behaviour
from pytest_ane.project.entries import read_manifest
from pytest_ane.project.preflight import versions
from pytest_ane.project.project import Project

EXAMPLE = "pytest-ane doctor --manifest shards.toml"
_NEEDED = ("coremltools", "torch", "numpy")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The manifest and the cache."""
    add_shared(parser, "manifest", "cache")


def run(options: argparse.Namespace) -> Output:
    """One line for each check; nothing is built or deleted.

    It fails where there are problems, after everything was checked.
    """
    lacking = [name for name in _NEEDED if find_spec(name) is None]
    problems = [f"{name} is not installed; run: pip install pytest-ane" for name in lacking]
    checks, models = dict(_machine()), dict[str, str]()
    yield from (f"{name}: {text}" for name, text in checks.items())
    manifest, text = _manifest(options.manifest, problems)
    cache = _cache(options.cache, problems)
    more = {**dict(_folders(cache)), "manifest": text}
    if manifest is not None:
        models = {m.name: _model(manifest, m, cache, problems) for m in manifest.models}
    yield from (f"{name}: {text}" for name, text in (more | models).items())
    plans = plan_caches()
    yield from _plans(plans)
    data = {"checks": checks | more, "models": models, "plan_caches": plans, "problems": problems}
    if problems:
        return Failed("\n  - ".join((f"problems: {len(problems)}", *problems)), data)
    yield "no problems found"
    return data


def _machine() -> Iterator[tuple[str, str]]:
    yield "versions", f"pytest-ane {__version__}, {versions()}"
    system = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.system()
    yield (
        "machine",
        f"{system} {platform.machine()}, {os.cpu_count()} cores, {amount(available_memory())} of "
        f"memory, {default_builds()} builds at once unless --ane-builds says",
    )
    yield "Core ML", _core_ml()
    yield "threads", ", ".join(f"{name} {os.environ.get(name, 'not set')}" for name in _THREADS)


def _core_ml() -> str:
    if not has_native():
        return "none here; artifacts run on the CPU executor, placement is forecast"
    try:
        machine = Machine.detect()
    except AneError as error:
        return str(error)
    listed = ", ".join(machine.devices).replace("ANE", f"ANE ({machine.ane_cores} cores)")
    kind = without_ane(machine.device_facts())
    parts = (
        str(machine),
        machine.model,
        f"compiler {machine.compiler}",
        listed and f"devices {listed}",
        kind and f"which is {kind} and proves nothing of the ANE",
    )
    return ", ".join(filter(None, parts))


def _manifest(path: Path | None, problems: list[str]) -> tuple[Manifest | None, str]:
    file = path or Path("shards.toml")
    if path is None and not file.exists():
        return None, "no shards.toml here; 'pytest-ane init' writes one"
    try:
        manifest = read_manifest(file)
    except AneError as error:
        problems += str(error).splitlines()
        return None, f"{file}, which cannot be used"
    make_importable(manifest)
    return manifest, f"{file}, models {len(manifest.models)}"


def _cache(root: Path | None, problems: list[str]) -> Cache | None:
    try:
        cache = Cache(root)
    except CacheError as error:
        problems.append(str(error))
        return None
    if cache.unwritable:
        problems.append(
            f"The cache folder {cache.root} cannot be written ({cache.unwritable}): what it holds "
            "is used, and nothing can be built; choose another with --ane-cache=DIR."
        )
    return cache


def _folders(cache: Cache | None) -> Iterator[tuple[str, str]]:
    def free(folder: Path) -> str:
        return f"{amount(shutil.disk_usage(folder).free)} free"

    if cache is not None:
        entries = cache.entries()
        held = f"{len(entries)} entries, {amount(sum(e.size for e in entries))}"
        yield "cache", f"{cache.root}, {held}, {free(cache.root)}"
    yield "temporary files", f"{temporary_folder()}, {free(temporary_folder())}"


def _model(manifest: Manifest, model: Model, cache: Cache | None, problems: list[str]) -> str:
    words = [counted(len(model.shards), "shard")]
    if model.canary:
        words.append(f"canary {', '.join(model.canary)}")
    for shard in model.shards:
        for path in (shard.artifact, shard.reference, shard.uncompressed):
            if isinstance(path, Path) and not path.exists():
                problems.append(f"{shard.qualified}: {path} does not exist; check {model.name}.")
    try:
        check_behaviour(model)
        if cache is not None and any(shard.artifact is None for shard in model.shards):
            words += _to_build(Project(manifest, model.shards, cache.root), model, problems)
    except AneError as error:
        problems.append(f"{model.name}: {str(error).removeprefix(f'{model.name}: ')}")
        words.append("cannot be used")
    return ", ".join(words)


def _to_build(project: Project, model: Model, problems: list[str]) -> Iterator[str]:
    for sentence in project.refused.values():
        raise SourceError(sentence)
    preflight = project.preflight
    missing = len(preflight.missing)
    yield f"{sum(s.artifact is None for s in model.shards) - missing} built, {missing} to build"
    if missing:
        volumes = preflight.volumes()
        yield " · ".join(map(str, volumes))
        small = [volume for volume in volumes if volume.too_small]
        problems += [f"{model.name}: the disk is too small: {volume}." for volume in small]


def _plans(plans: Sequence[PlanCache]) -> Iterator[str]:
    stale = sum(cache.size for cache in plans if cache.stale)
    yield (
        f"Core ML plan caches: {amount(sum(cache.size for cache in plans))}, {amount(stale)} of "
        "them of another macOS and never used again; delete what you do not need"
    )
    for cache in plans:
        yield f"  {amount(cache.size)}{' stale' if cache.stale else ''}  {cache.path}"
