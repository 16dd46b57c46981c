"""The workspace of one run: manifest, selection, cache, backend, and what was opened already."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from pytest_ane.backends import Backend, ComputeUnits, get_backend
from pytest_ane.backends.coreml import Machine
from pytest_ane.build import Artifact, Cache, build_shard
from pytest_ane.core.errors import ManifestError
from pytest_ane.core.verdict import Verdict
from pytest_ane.evidence import Store
from pytest_ane.evidence.uses import unused
from pytest_ane.families import Buildable, get_family
from pytest_ane.gates.throughput.machine import identity
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.manifest import Manifest, Model, Policy, Shard
from pytest_ane.plugin.canary import Canaries
from pytest_ane.plugin.progress import Progress
from pytest_ane.plugin.run import Run
from pytest_ane.plugin.thresholds import Threshold
from pytest_ane.probes.cases import Case
from pytest_ane.probes.golden import golden_cases, read_golden
from pytest_ane.probes.package import package_cases
from pytest_ane.project.builder_model import BuiltModel
from pytest_ane.project.models import OpenModel
from pytest_ane.project.preflight import Preflight
from pytest_ane.project.stack import Stack

KEY = pytest.StashKey["Workspace"]()


def of(config: pytest.Config) -> Workspace:
    """The run's workspace, made by `pytest_configure`."""
    return config.stash[KEY]


@dataclass
class Workspace:
    """What the fixtures draw on. Artifacts and models are opened when first asked for.

    Attributes:
        shards: those selected; `scope` those whose gates are run, where that is known.
        machine: this Mac, where artifacts run on it.
        notes: what the backend said since the latest test was reported.
        speeds: what was timed, and what was said of it.
    """

    manifest: Manifest
    asked: str
    shards: tuple[Shard, ...]
    cache_root: Path | None
    thresholds: tuple[Threshold, ...]
    unproven: str
    blame: str
    builds: int
    backend_name: str
    units: ComputeUnits
    run_id: str
    gates: Path
    recording: frozenset[str]
    evidence: Store
    config: InitVar[pytest.Config]
    progress: Progress = field(init=False)
    scope: tuple[Shard, ...] | None = None
    machine: Machine | None = None
    notes: list[str] = field(default_factory=list)
    speeds: list[tuple[Speed, Verdict]] = field(default_factory=list)
    _models: dict[str, OpenModel | BuiltModel] = field(default_factory=dict)
    _artifacts: dict[str, Artifact] = field(default_factory=dict)
    _stacks: dict[str, Stack] = field(default_factory=dict)

    def __post_init__(self, config: pytest.Config) -> None:
        self.progress = Progress(config, len(self.shards), lambda: self.run)

    @cached_property
    def cache(self) -> Cache:
        """The cache folder, checked to be writable on first use."""
        return Cache(self.cache_root, self.builds)

    @cached_property
    def run(self) -> Run:
        """What all processes of the run share."""
        return Run(self.cache, self.run_id)

    @cached_property
    def preflight(self) -> Preflight:
        """What is still to be built, and where."""
        scope = self.shards if self.scope is None else self.scope
        return Preflight(scope, self.cache, self.model, self.builds)

    @cached_property
    def canaries(self) -> Canaries:
        """What is known of shards that must pass before others are built."""
        return Canaries(self, self.gates)

    @cached_property
    def backend(self) -> Backend:
        """What runs artifacts."""
        if self.machine is None:
            return get_backend("cpu")
        return get_backend(
            "coreml", cache=self.cache, units=self.units, say=self._note, machine=self.machine
        )

    def _note(self, text: str) -> None:
        """Keep what the backend says for the test that is running; its shard is named by id."""
        for name, artifact in self._artifacts.items():
            text = text.replace(str(artifact.path), name)
        self.notes.append(text)

    @cached_property
    def identity(self) -> dict[str, str]:
        """What another run must share for its speed to be compared."""
        return identity(self.backend)

    @cached_property
    def complete_models(self) -> list[str]:
        """Models that behaviour is asked of."""
        chosen = {shard.qualified for shard in self.shards}
        return [model.name for model in self.manifest.models if is_complete(model, chosen)]

    def allows_unproven(self, subject: str) -> bool:
        """Whether an unproven verdict on a shard or model lets its test pass."""
        return (self.unproven or self.policy_of(subject).unproven) == "allow"

    def policy_of(self, subject: str) -> Policy:
        """What a selected shard, or a model, must reach."""
        policies = {shard.qualified: shard.policy for shard in self.shards}
        policies |= {model.name: model.policy for model in self.manifest.models}
        return policies[subject]

    def unused_evidence(self) -> list[str]:
        """Evidence files, relative to their folder, that no shard of the manifest uses."""
        if not self.manifest.path.is_file():  # A package alone: whose evidence lies here?
            return []
        folder = self.evidence.folder
        found = unused(self.evidence, self.manifest)
        return [path.relative_to(folder).as_posix() for path in found]

    def synthetic(self, subject: str) -> str:
        """How the weights of a shard or model were made up; empty for real ones."""
        source = self.manifest.model_of(subject.partition(":")[0]).source
        return source.synthetic if source else ""

    def model(self, name: str) -> OpenModel | BuiltModel:
        """A model's source, family and prompts, or its builder, opened lazily."""
        if name not in self._models:
            model = self.manifest.model_of(name)
            self._models[name] = (BuiltModel if model.builder else OpenModel)(model, self.cache)
        return self._models[name]

    def artifact(self, shard: Shard) -> Artifact:
        """A shard's package: the user's own, from the cache, or built now.

        Raises:
            NotRunError: a canary of the shard's model has not passed.
        """
        self.canaries.require(shard)
        if shard.qualified not in self._artifacts:
            with self.progress.building(shard.qualified) as report:
                model = None if shard.artifact else self.model(shard.model)
                artifact = build_shard(
                    shard,
                    self.cache,
                    identity=model.identity if model else {},
                    model=lambda: self._opened(shard.model),
                )
                report(artifact.size)
            self._artifacts[shard.qualified] = artifact
        return self._artifacts[shard.qualified]

    def _opened(self, name: str) -> Buildable:
        """A model to build from; `BuildError` where the disk is plainly too small."""
        self.preflight.check()
        return self.model(name).language_model

    def cases(self, shard: Shard, artifact: Artifact) -> list[Case]:
        """A shard's probes with what its reference makes of them."""
        if shard.reference == "float32":
            return self.model(shard.model).cases(shard)
        if shard.golden is not None:
            model = self.model(shard.model) if shard.family else None
            layout = model.layout(shard) if isinstance(model, OpenModel) else None
            golden = read_golden(shard.golden)
            return golden_cases(golden, shard, layout, self.backend, artifact.path)
        reference = shard.reference if isinstance(shard.reference, Path) else None
        return package_cases(self.backend, artifact.path, reference, shard.probes)

    def stack(self, name: str) -> Stack:
        """A whole model, every shard built."""
        if name not in self._stacks:
            self._stacks[name] = self._stack(name)
        return self._stacks[name]

    def _stack(self, name: str) -> Stack:
        opened = self.model(name)
        assert isinstance(opened, OpenModel)  # A builder's shards are no chain.
        shards = [shard for shard in self.shards if shard.model == name]
        return Stack(opened, [(shard, self.artifact(shard)) for shard in shards], self.backend)


def is_complete(model: Model, chosen: Collection[str]) -> bool:
    """Whether a model has a family and a head, and its every shard is chosen by qualified id.

    Raises:
        ManifestError: the family knows no such shard.
    """
    if not model.family or any(shard.qualified not in chosen for shard in model.shards):
        return False
    try:
        return any(wire.mode == "append" for wire in get_family(model.family).wiring(model.ids))
    except ManifestError as error:
        raise ManifestError(f"{model.name}: {error}") from None
