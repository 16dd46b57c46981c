"""A run's workspace, from its options, ini and manifest."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_ane.backends.coreml import Machine, check_native
from pytest_ane.build.cache import default_root
from pytest_ane.build.folder import require_cache
from pytest_ane.build.slots import default_count
from pytest_ane.core.digests import remembered
from pytest_ane.core.errors import BackendError, ManifestError
from pytest_ane.evidence import FOLDER, Store
from pytest_ane.families import make_importable
from pytest_ane.manifest import Manifest, Shard, load, package_manifest, select
from pytest_ane.plugin import settings, suite
from pytest_ane.plugin.run import run_id, use_folder
from pytest_ane.plugin.thresholds import overridden, thresholds
from pytest_ane.plugin.workspace import Workspace


def workspace_of(config: pytest.Config) -> Workspace:
    """Read manifest and selection, and see that the backend can be used.

    Raises:
        ManifestError: either is wrong, or both a selection and a package are given.
        CacheError: the cache folder is one of someone else's.
        BackendError: the backend cannot be used on this machine.
        pytest.UsageError: an option is wrong.
    """
    manifest, shards, asked = _selected(config)
    cache_root = settings.path(config, "ane_cache")
    require_cache((cache_root or default_root()).absolute())
    _remember(config, cache_root or default_root())
    if manifest.tmpdir is not None:
        config.add_cleanup(use_folder(manifest.tmpdir, manifest.path).close)
    given = thresholds(config, manifest)
    space = Workspace(
        manifest=manifest,
        asked=asked,
        shards=tuple(overridden(shard, given) for shard in shards),
        cache_root=cache_root,
        thresholds=given,
        unproven=settings.unproven(config),
        blame=settings.blame(config),
        builds=settings.builds(config) or default_count(),
        backend_name=settings.backend(config),
        units=settings.compute_units(config),
        run_id=run_id(config),
        gates=suite.in_use(config),
        recording=settings.recording(config),
        evidence=Store(settings.path(config, "ane_evidence") or manifest.path.parent / FOLDER),
        config=config,
    )
    if space.recording and space.backend_name != "coreml":
        raise BackendError(
            "--ane-record: evidence is recorded on a Mac, by the backend coreml; this run uses "
            f"{space.backend_name}."
        )
    if space.backend_name == "coreml":
        check_native()
        space.machine = Machine.ask()
    _ = space.complete_models  # A family that knows no such shard says so here.
    if space.recording:
        space.evidence.require_writable()  # Not when the first shard has been measured.
    return space


def _selected(config: pytest.Config) -> tuple[Manifest, tuple[Shard, ...], str]:
    """The manifest, the shards selected of it, and how they were asked for."""
    package, selection = settings.package(config), config.getoption("ane_shards")
    if package is not None and selection is not None:
        raise ManifestError("Give either --ane-shards or --ane-package, not both.")
    if package is not None:
        manifest = package_manifest(package)
        return manifest, manifest.shards, package.name
    manifest = load(settings.path(config, "ane_manifest") or config.rootpath / "shards.toml")
    shards = select(manifest, selection)
    make_importable(manifest)
    return manifest, shards, selection


def _remember(config: pytest.Config, cache: Path) -> None:
    """Until the run ends, digests of files that do not change are kept in the cache."""
    stack = ExitStack()
    rehash = bool(config.getoption("ane_rehash"))
    stack.enter_context(remembered(cache / "digests", rehash=rehash))
    config.add_cleanup(stack.close)
