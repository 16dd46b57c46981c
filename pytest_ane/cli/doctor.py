"""`pytest-ane doctor`: what a run needs, looked at before it is started."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane import __version__
from pytest_ane.core.errors import AneError, CacheError, DoctorError

if TYPE_CHECKING:
    from pytest_ane.build import Cache
    from pytest_ane.manifest import Manifest, Model

_NEEDED = ("coremltools", "torch", "numpy")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOMP_SPINCOUNT")


def run(manifest: Path | None, root: Path | None) -> Iterator[str]:
    """One line for each thing looked at; nothing is built or deleted.

    Raises:
        DoctorError: problems, one line each, after everything was looked at.
    """
    problems = [
        f"{name} is not installed; run: pip install pytest-ane" for name in _NEEDED if _lacks(name)
    ]
    yield from _machine()
    with ExitStack() as stack:
        project, words = _manifest(manifest, stack, problems)
        cache = _cache(root, problems)
        yield from _folders(cache)
        yield words
        if project is not None:
            for model in project.models:
                yield _model(project, model, cache, problems)
    yield from _plans()
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise DoctorError("\n".join((count, *(f"  - {problem}" for problem in problems))))
    yield "no problems found"


def _lacks(distribution: str) -> bool:
    try:
        return not version(distribution)
    except PackageNotFoundError:
        return True


def _machine() -> Iterator[str]:
    from pytest_ane.build.disk import amount
    from pytest_ane.build.semaphore import available_memory, default_builds
    from pytest_ane.project.preflight import versions

    yield f"versions: pytest-ane {__version__}, {versions()}"
    system = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.system()
    memory, builds = amount(available_memory()), default_builds()
    yield (
        f"machine: {system} {platform.machine()}, {os.cpu_count()} cores, {memory} of memory, "
        f"{builds} builds at once unless --ane-builds says"
    )
    yield f"Core ML: {_core_ml()}"
    yield "threads: " + ", ".join(f"{name} {os.environ.get(name, 'not set')}" for name in _THREADS)


def _core_ml() -> str:
    """`Apple M4 Max, macOS 26.1 (25B78), compiler ...`, or that there is none."""
    from pytest_ane.backends.coreml import Machine, check_native

    try:
        check_native()
    except AneError:
        return "none here; artifacts run on the CPU executor, placement is forecast"
    try:
        machine = Machine.detect()
    except AneError as error:
        return str(error)
    return f"{machine}, compiler {machine.compiler}"


def _manifest(
    path: Path | None, stack: ExitStack, problems: list[str]
) -> tuple[Manifest | None, str]:
    """The manifest, its folder for temporary files in use; and what to say of it."""
    from pytest_ane.manifest import load
    from pytest_ane.project.project import scratch_of

    file = path or Path("shards.toml")
    if path is None and not file.exists():
        return None, "manifest: no shards.toml here; 'pytest-ane init' writes one"
    try:
        manifest = load(file)
    except AneError as error:
        problems += str(error).splitlines()
        return None, f"manifest: {file}, which cannot be used"
    try:
        stack.enter_context(scratch_of(manifest))
    except AneError as error:
        problems.append(str(error))
    return manifest, f"manifest: {file}, models {len(manifest.models)}"


def _cache(root: Path | None, problems: list[str]) -> Cache | None:
    from pytest_ane.build import Cache

    try:
        return Cache(root)
    except CacheError as error:
        problems.append(str(error))
        return None


def _folders(cache: Cache | None) -> Iterator[str]:
    from pytest_ane.build.disk import amount
    from pytest_ane.build.scratch import temporary_folder

    if cache is not None:
        entries = cache.entries()
        held, free = sum(e.size for e in entries), shutil.disk_usage(cache.root).free
        yield f"cache: {cache.root}, {len(entries)} entries, {amount(held)}, {amount(free)} free"
    temporary = temporary_folder()
    yield f"temporary files: {temporary}, {amount(shutil.disk_usage(temporary).free)} free"


def _model(manifest: Manifest, model: Model, cache: Cache | None, problems: list[str]) -> str:
    """`smollm2: 34 shards, canary L01, 10 built, ...`."""
    count = len(model.shards)
    words = [f"{model.name}: {count} {'shard' if count == 1 else 'shards'}"]
    if model.canary:
        words.append(f"canary {', '.join(model.canary)}")
    for shard in model.shards:
        for path in (shard.artifact, shard.reference):
            if isinstance(path, Path) and not path.exists():
                problems.append(f"{shard.qualified}: {path} does not exist; check {model.name}.")
    if any(shard.artifact is None for shard in model.shards) and cache is not None:
        try:
            words += _to_build(manifest, model, cache, problems)
        except AneError as error:
            problems.append(f"{model.name}: {error}")
            words.append("source cannot be used")
    return ", ".join(words)


def _to_build(manifest: Manifest, model: Model, cache: Cache, problems: list[str]) -> Iterator[str]:
    from pytest_ane.project.project import Project

    preflight = Project(manifest, model.shards, cache.root).preflight
    missing = len(preflight.missing)
    yield f"{sum(s.artifact is None for s in model.shards) - missing} built, {missing} to build"
    if missing:
        volumes = preflight.volumes()
        yield " · ".join(map(str, volumes))
        small = [volume for volume in volumes if volume.too_small]
        problems += [f"{model.name}: the disk is too small: {volume}." for volume in small]


def _plans() -> Iterator[str]:
    from pytest_ane.build.disk import amount, plan_caches

    caches = plan_caches()
    if not caches:
        yield "Core ML plan caches: none"
        return
    stale = sum(plans.size for plans in caches if plans.stale)
    yield (
        f"Core ML plan caches: {amount(sum(plans.size for plans in caches))}, {amount(stale)} of "
        "them of another macOS and never used again; delete what you do not need"
    )
    for plans in caches:
        yield f"  {amount(plans.size)}{' stale' if plans.stale else ''}  {plans.path}"
