"""The workspace of one run: manifest, selection, cache, backend, and what was opened already."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from pytest_ane.backends import Backend, ComputeUnits, get_backend
from pytest_ane.backends.coreml import Machine, check_native
from pytest_ane.build import Artifact, Cache, build_shard
from pytest_ane.build.cache import default_root
from pytest_ane.build.slots import default_count
from pytest_ane.digests import remembered
from pytest_ane.errors import BackendError, ManifestError
from pytest_ane.evidence import FOLDER, Store
from pytest_ane.evidence.uses import unused
from pytest_ane.families import Buildable, Wire, get_family, search_beside
from pytest_ane.fidelity import Case
from pytest_ane.fidelity.package import package_cases
from pytest_ane.manifest import Manifest, Model, Shard, load, of_package, select
from pytest_ane.plugin import settings, suite
from pytest_ane.plugin.built import BuiltModel
from pytest_ane.plugin.canary import Canaries
from pytest_ane.plugin.models import OpenModel
from pytest_ane.plugin.preflight import Preflight
from pytest_ane.plugin.progress import Progress
from pytest_ane.plugin.run import Run, run_id, use_folder
from pytest_ane.plugin.stack import Stack
from pytest_ane.report.text import header

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
    """

    manifest: Manifest
    asked: str
    shards: tuple[Shard, ...]
    cache_root: Path | None
    min_cosine: float | None
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
    _models: dict[str, OpenModel | BuiltModel] = field(default_factory=dict)
    _artifacts: dict[str, Artifact] = field(default_factory=dict)
    _stacks: dict[str, Stack] = field(default_factory=dict)

    @classmethod
    def of_config(cls, config: pytest.Config) -> Workspace:
        """Read manifest and selection.

        Raises:
            ManifestError: either is wrong, or both a selection and a package are given.
            BackendError: the backend cannot be used on this machine.
        """
        package, selection = settings.package(config), config.getoption("ane_shards")
        if package is not None and selection is not None:
            raise ManifestError("Give either --ane-shards or --ane-package, not both.")
        if package is not None:
            manifest = of_package(package)
            shards = manifest.shards
        else:
            manifest = load(
                settings.path(config, "ane_manifest") or config.rootpath / "shards.toml"
            )
            shards = select(manifest, selection)
            search_beside(manifest)
        cache_root = settings.path(config, "ane_cache")
        _remember(config, cache_root or default_root())
        if manifest.tmpdir is not None:
            config.add_cleanup(use_folder(manifest.tmpdir, manifest.path).close)
        minimum = settings.minimum_cosine(config)
        space = cls(
            manifest=manifest,
            asked=selection if package is None else package.name,
            shards=tuple(_overridden(shard, minimum) for shard in shards),
            cache_root=cache_root,
            min_cosine=minimum,
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
        return space

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
    def complete_models(self) -> list[str]:
        """Models with a family and a head whose every shard is selected."""
        chosen = {shard.qualified for shard in self.shards}
        return [
            model.name
            for model in self.manifest.models
            if model.family
            and all(shard.qualified in chosen for shard in model.shards)
            and any(wire.mode == "append" for wire in _wiring(model, model.family))
        ]

    def allows_unproven(self, subject: str) -> bool:
        """Whether an unproven verdict on a shard or model lets its test pass."""
        policies = {shard.qualified: shard.policy for shard in self.shards}
        policies |= {model.name: model.policy for model in self.manifest.models}
        return (self.unproven or policies[subject].unproven) == "allow"

    def unused_evidence(self) -> list[str]:
        """Evidence files, relative to their folder, that no shard of the manifest uses."""
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

    def header(self) -> str:
        """One line with what decides the verdicts."""
        return header(
            asked=self.asked,
            selected=self.shards,
            of=len(self.manifest.shards),
            backend=self.backend_name,
            device=f"{self.machine} · {self.units}" if self.machine else "",
            min_cosine=self.min_cosine,
            unproven=self.unproven,
            cache=self.cache_root,
            canaries=self._canaries_in_words(),
        )

    def _canaries_in_words(self) -> list[str]:
        """`L01 first`, or that the selection leaves a canary out."""
        words = []
        for name in dict.fromkeys(shard.model for shard in self.shards):
            first = ", ".join(shard.id for shard in self.canaries.of(name))
            chosen = {shard.id for shard in self.shards if shard.model == name}
            absent = ", ".join(i for i in self.manifest.model_of(name).canary if i not in chosen)
            words += [f"{first} first"] if first else []
            words += [f"{absent} not selected"] if absent else []
        return words


def _remember(config: pytest.Config, cache: Path) -> None:
    """Until the run ends, digests of files that do not change are kept in the cache."""
    stack = ExitStack()
    rehash = bool(config.getoption("ane_rehash"))
    stack.enter_context(remembered(cache / "digests", rehash=rehash))
    config.add_cleanup(stack.close)


def _wiring(model: Model, family: str) -> tuple[Wire, ...]:
    try:
        return get_family(family).wiring(model.ids)
    except ManifestError as error:
        raise ManifestError(f"{model.name}: {error}") from None


def _overridden(shard: Shard, minimum: float | None) -> Shard:
    """The shard with the threshold given on the command line or in ini, if any."""
    if minimum is None:
        return shard
    fidelity = shard.policy.fidelity.model_copy(update={"min_cosine": minimum})
    policy = shard.policy.model_copy(update={"fidelity": fidelity})
    return shard.model_copy(update={"policy": policy})
