"""A run's workspace: the project that its options, ini and manifest give, and what the run adds."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from pytest_ane.backends.coreml import Machine, check_native
from pytest_ane.gates.throughput.machine import identity
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make.disk import default_builds
from pytest_ane.make.shared_store import check_url
from pytest_ane.manifest import Manifest, Shard, package_manifest, select
from pytest_ane.mlprogram.errors import BackendError, ManifestError
from pytest_ane.mlprogram.executor.budget import process_budget
from pytest_ane.models.families.own import make_importable
from pytest_ane.plugin import _options
from pytest_ane.plugin._process import CLEAN, is_worker, progress_of, run_id
from pytest_ane.project.choose import Threshold, check_behaviour, read_threshold
from pytest_ane.project.entries import expanded, read_manifest
from pytest_ane.project.progress import RunFolder
from pytest_ane.project.project import Project
from pytest_ane.records.record import files_of
from pytest_ane.records.run import checkout
from pytest_ane.records.store import FOLDER, Store

if TYPE_CHECKING:
    from pytest_ane.cluster.client import Cluster

KEY = pytest.StashKey["Workspace"]()


def of(config: pytest.Config) -> Workspace:
    return config.stash[KEY]


@dataclass(kw_only=True)
class Workspace(Project):
    """The project of one run of pytest.

    `selection` is as it was written; `threshold`, `unproven` and `blame` override policies;
    `strict` ones take warnings for failures;
    `recording` has verbs of `--ane-record`, `evidence` the folder; `notes` the backend's notices
    since the latest test; `speeds` what was timed; `cluster` lives while the run goes on.
    """

    selection: str
    threshold: Threshold | None
    unproven: str
    strict: bool
    blame: str
    run_id: str
    recording: frozenset[str]
    evidence: Store
    keeps_records: bool = False
    notes: list[str] = field(default_factory=list)
    speeds: list[tuple[Speed, Verdict]] = field(default_factory=list)
    cluster_url: str = ""
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        self.notify = self.notes.append

    @cached_property
    def run(self) -> RunFolder:
        return RunFolder(self.cache, self.run_id)

    @cached_property
    def commit(self) -> str:
        return checkout(self.manifest.path.absolute().parent)[0]

    @cached_property
    def identity(self) -> dict[str, str]:
        return identity(self.backend)

    def allows_unproven(self, subject: str) -> bool:
        return (self.unproven or self.policy_of(subject).unproven) == "allow"

    def unused_evidence(self) -> list[str]:
        """Evidence files, relative to their folder, that no shard of the manifest uses."""
        if not self.manifest.path.is_file():  # A package alone: whose evidence lies here?
            return []
        folder = self.evidence.folder
        return [path.relative_to(folder).as_posix() for path in self.evidence.unused(self.manifest)]

    def digest_of(self, subject: str) -> str:
        artifact = self._artifacts.get(subject)
        return artifact.digest if artifact else ""

    def known_files(self, subject: str) -> dict[str, str]:
        """Digests of a shard's or model's files, if all of its artifacts were opened."""
        shards = [s for s in self.manifest.shards if subject in (s.qualified, s.model)]
        artifacts = {s.id: self._artifacts.get(s.qualified) for s in shards}
        opened = {id_: artifact for id_, artifact in artifacts.items() if artifact is not None}
        return files_of(opened) if len(opened) == len(artifacts) else {}

    def files_of(self, shard: Shard) -> dict[str, str]:
        return files_of({shard.id: self.artifact(shard)})


def open_workspace(config: pytest.Config) -> Workspace:
    """Read manifest and selection; `AneError` or `UsageError` where something is wrong."""
    manifest, shards, selection = _selected(config)
    cluster = _options.url(config, "ane_cluster")
    cluster = manifest.cluster if cluster is None else cluster
    if cluster:
        _options.refuse_with_cluster(config)
        _options.value(config, "ane_cluster_timeout")
    cosine = _options.value(config, "ane_min_cosine")
    how = _options.origin(config, "ane_min_cosine")
    threshold = read_threshold(manifest, cosine, how) if cosine else None
    space = Workspace(
        manifest=manifest,
        shards=tuple(map(threshold.override, shards)) if threshold else shards,
        cache_root=_options.path(config, "ane_cache"),
        store=_options.url(config, "ane_store"),
        builds=_options.value(config, "ane_builds") or default_builds(),
        backend_name="cpu" if cluster else _options.backend(config),
        units=_options.compute_units(config),
        device_timeout=_options.value(config, "ane_device_timeout"),
        selection=selection,
        threshold=threshold,
        unproven=_options.value(config, "ane_unproven") or "",
        strict=_options.value(config, "ane_warnings") == "error",
        blame=_options.value(config, "ane_blame"),
        run_id=run_id(config),
        recording=_options.recording(config),
        keeps_records=bool(_options.report_files(config, records=True)),
        evidence=Store(_options.path(config, "ane_evidence") or manifest.path.parent / FOLDER),
        cluster_url=cluster,
    )

    def clean() -> None:
        if "run" in vars(space) and not is_worker(config):
            shutil.rmtree(space.run.folder, ignore_errors=True)

    config.stash[CLEAN] = clean
    space.progress = progress_of(config, len(space.shards), lambda: space.run)
    budget = (_options.value(config, name) for name in ("ane_memory", "ane_time"))
    stack = ExitStack()
    config.add_cleanup(stack.close)
    stack.enter_context(process_budget(*budget))
    stack.enter_context(space.use(rehash=bool(config.getoption("ane_rehash"))))
    if space.backend_name == "coreml":
        check_native()
        space.machine = Machine.detect()
    elif space.recording:
        raise BackendError(
            "--ane-record: evidence is recorded on a Mac, by the backend coreml; this run uses "
            f"{space.backend_name}."
        )
    check_url(space.store_url)
    _ = space.complete_models  # A family that knows no such shard says so here.
    # One error when gates are collected, in place of one for each of them.
    space.shards = tuple(s for s in space.shards if s.model not in space.refused)
    for name in {shard.model for shard in shards}:
        check_behaviour(manifest.model_of(name))
    if space.recording:
        space.evidence.require_writable()  # Not when the first shard has been measured.
    return space


def _selected(config: pytest.Config) -> tuple[Manifest, tuple[Shard, ...], str]:
    packages, selection = _options.packages(config), config.getoption("ane_shards")
    if packages and selection is not None:
        raise ManifestError("Give either --ane-shards or --ane-package, not both.")
    if packages:
        manifest = expanded(package_manifest(*packages))
    else:
        manifest = read_manifest(_options.manifest_file(config))
    if arithmetic := _options.value(config, "ane_arithmetic"):
        manifest = manifest.in_arithmetic(arithmetic)
    if packages:
        return manifest, manifest.shards, ", ".join(package.name for package in packages)
    shards = select(manifest, selection)
    make_importable(manifest)
    return manifest, shards, selection
