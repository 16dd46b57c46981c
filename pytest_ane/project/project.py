"""A project: its manifest, and what is opened, built and chained of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import TypeAdapter

from pytest_ane.backends import Backend, ComputeUnits, CpuBackend, get_backend, of_function
from pytest_ane.backends.coreml import Machine
from pytest_ane.backends.coreml.process import DEVICE_TIMEOUT
from pytest_ane.gates.base import Gate, GateTest, Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.make import Artifact, Cache, build_shard
from pytest_ane.make.cache import default_root, to_stderr
from pytest_ane.make.disk import default_builds, require_cache
from pytest_ane.make.record import PACKAGE, uncompressed_package
from pytest_ane.make.shard import artifact_key, converted_package, uncompressed
from pytest_ane.make.shared_store import SharedStore
from pytest_ane.manifest import FAMILIES, Manifest, Policy, Shard, Uncompressed, select
from pytest_ane.manifest.inputs import questions
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.digests import content_digest, key_digest, remembered, tree_digest
from pytest_ane.mlprogram.errors import (
    AneError,
    CacheError,
    GoldenError,
    ManifestError,
    ProgramError,
    SourceError,
)
from pytest_ane.mlprogram.model import SUFFIXES, counterpart, read_any, read_model
from pytest_ane.mlprogram.pairing import program_digest, same_form
from pytest_ane.mlprogram.records import MLModel as Program
from pytest_ane.mlprogram.records import Pipeline
from pytest_ane.models.families import Buildable, Ports
from pytest_ane.models.families.own import make_importable
from pytest_ane.probes.cases import Case
from pytest_ane.probes.domains import SAMPLER
from pytest_ane.probes.error_budget import BUDGET_VERSION, ErrorBudget, measure_budget, measure_loss
from pytest_ane.probes.golden import golden_cases, read_golden
from pytest_ane.probes.package import package_cases
from pytest_ane.probes.recording import RECORDING_VERSION
from pytest_ane.probes.scales import further_cases
from pytest_ane.probes.seeded import GENERATOR
from pytest_ane.project._own_chain import OpenChain
from pytest_ane.project.choose import is_complete
from pytest_ane.project.entries import read_manifest
from pytest_ane.project.models import OpenBuilder, Opened, OpenModel, open_language_model
from pytest_ane.project.preflight import Preflight
from pytest_ane.project.process import in_ci
from pytest_ane.project.progress import Progress
from pytest_ane.project.stack import Stack

BackendName: TypeAlias = Literal["cpu", "coreml"]
P = TypeVar("P", bound="Project")


_BUDGET = "budget.json"
_BUDGETS = TypeAdapter(ErrorBudget)
_NO_PACKAGE = (
    "no uncompressed program is named, so algebra and compression could not be told apart; add "
    'uncompressed = "x-fp16.mlpackage" to the shard, be it the reference once more'
)


def identities(package: Path, function: str | None = None) -> tuple[str, ...]:
    """What a package is: the digest of its files, and of what it computes if it is no pipeline."""
    return _identities(package, function, tree_digest(package))


@lru_cache(maxsize=256)
def _identities(package: Path, function: str | None, digest: str) -> tuple[str, ...]:
    named, model = [f"digest {digest[:12]}"], read_any(package, function=function)
    if not isinstance(model, Pipeline):
        named.append(f"program {program_digest(model)[:12]}")
    return tuple(named)


def default_backend() -> BackendName:
    """Core ML on macOS, the CPU executor elsewhere."""
    return "coreml" if sys.platform == "darwin" else "cpu"


@dataclass
class Project:
    """What pytest's plugin, the command line and searches share; opened when first used.

    Attributes:
        shards: those selected, with their policies as the run has them.
        store: URL or folder of the store that machines share; None for the manifest's.
        builds: how many shards are built at once, over all processes that share the cache.
        machine: this Mac, if its chip and system are known already.
        device_timeout: seconds that one call of Core ML may take in a process of its own; None for
            calls in this process, without a limit.
        scope: the selected shards whose gates run; None while that is unknown.
        judged: whether a shard's fidelity is asked for: its budget is measured while it is built.
        before_build: called before a package is looked up or built; raises where it may not be.
        elsewhere: gives a shard's package that other machines build; None to build here.
        identities: what models depend on, by name, where another machine has found that out.
        exchanged: how many entries the store gave (`fetched`) and took (`stored`).
    """

    manifest: Manifest
    shards: tuple[Shard, ...]
    cache_root: Path | None = None
    builds: int = field(default_factory=default_builds)
    backend_name: BackendName = field(default_factory=default_backend)
    units: ComputeUnits = "CPU_AND_NE"
    machine: Machine | None = None
    device_timeout: float | None = DEVICE_TIMEOUT
    scope: tuple[Shard, ...] | None = None
    judged: Callable[[Shard], bool] = lambda shard: True
    store: str | None = None
    progress: Progress = field(default_factory=Progress)
    notify: Callable[[str], None] = to_stderr
    before_build: Callable[[Shard], None] = lambda shard: None
    elsewhere: Callable[[Shard], Artifact] | None = None
    identities: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    exchanged: Counter[str] = field(default_factory=Counter)
    _models: dict[str, Opened] = field(default_factory=dict)
    _artifacts: dict[str, Artifact] = field(default_factory=dict)
    _stacks: dict[tuple[str, Arithmetic], Stack] = field(default_factory=dict)

    @contextmanager
    def use(self: P, *, rehash: bool = False) -> Iterator[P]:
        """Remember digests of unchanged files in the cache; in CI all are read."""
        root = (self.cache_root or default_root()).absolute()
        require_cache(root)
        with remembered(root / "digests", rehash=rehash or in_ci()):
            yield self

    @property
    def store_url(self) -> str:
        """URL or folder of the store that machines share; empty for none."""
        return self.manifest.store if self.store is None else self.store

    @cached_property
    def cache(self) -> Cache:
        """The cache folder, before the store if there is one, or `CacheError`."""
        url = self.store_url
        return Cache(
            self.cache_root,
            self.builds,
            self._notify,
            SharedStore(url, self._notify, self.exchanged) if url else None,
            self.manifest.max_cache,
        )

    @cached_property
    def backend(self) -> Backend:
        """What runs artifacts."""
        return get_backend(
            self.backend_name,
            cache=self.cache if self.backend_name == "coreml" else None,
            units=self.units,
            say=self._notify,
            machine=self.machine,
            timeout=self.device_timeout,
        )

    def _notify(self, text: str) -> None:
        """Name a shard by its id, where the backend has its package's path."""
        for name, artifact in self._artifacts.items():
            if "path" in vars(artifact):  # One that lies elsewhere is not fetched for this.
                text = text.replace(str(artifact.path), name)
        self.notify(text)

    @property
    def complete_models(self) -> list[str]:
        """Whole stacks all of whose shards are selected: behaviour is judged of these."""
        selected = {shard.qualified for shard in self.shards}
        return [model.name for model in self.manifest.models if is_complete(model, selected)]

    def due(self, markers: Collection[str]) -> list[GateTest]:
        """Tests of every gate with one of these markers, of every shard or whole stack."""
        subjects: dict[str, Sequence[Subject]] = {
            "shard": self.shards,
            "model": [self.manifest.model_of(name) for name in self.complete_models],
        }
        return [
            gate.test(each)
            for gate in GATES.values()
            if gate.marker in markers
            for subject in subjects[gate.scope]
            if gate.asks(subject)
            for each in self.subjects(gate, subject)
        ]

    def subjects(self, gate: Gate[Any], subject: Subject) -> tuple[Subject, ...]:
        """A shard or model as the tests of a gate ask about it: one for each arithmetic."""
        return gate.subjects(subject, simulates=self.backend_name == "cpu")

    def policy_of(self, subject: str) -> Policy:
        """The policy of a selected shard, by qualified id, or of a model, by name."""
        return self._policies[subject]

    @cached_property
    def _policies(self) -> dict[str, Policy]:
        policies = {shard.qualified: shard.policy for shard in self.shards}
        return policies | {model.name: model.policy for model in self.manifest.models}

    def model(self, name: str) -> Opened:
        """A model by its family, its chain or its builder; one of packages alone has none."""
        if name not in self._models:
            model = self.manifest.model_of(name)
            own: type[Opened] = OpenBuilder if model.builder else OpenModel
            opened = self._models[name] = (OpenChain if model.chain else own)(model, self.cache)
            if name in self.identities:
                opened.identity = self.identities[name]
        return self._models[name]

    @cached_property
    def refused(self) -> dict[str, str]:
        """Why a selected model's source cannot be used, if so; other failures are the gates'."""
        needing = {s.model for s in self.shards if not s.artifact or s.reference == "float32"}
        refused = {}
        for model in self.manifest.models:
            if model.name in needing and model.family in FAMILIES:
                try:
                    open_language_model(model)
                except SourceError as error:
                    refused[model.name] = str(error)
                except Exception:
                    continue
        return refused

    def entry(self, shard: Shard) -> Path:
        """The folder of the cache that a shard is, or will be, built into."""
        key = artifact_key(shard, self.model(shard.model).identity)
        return self.cache.path("artifacts", key_digest(key))

    def package(self, shard: Shard) -> Path | None:
        """A shard's package: the user's own, or what the cache holds; None if it is not built."""
        if shard.artifact is not None:
            return shard.artifact
        if self.elsewhere is not None:
            return self.artifact(shard).path
        folder = self.cache.get("artifacts", self.entry(shard).name, shard.qualified)
        return None if folder is None else folder / PACKAGE

    @cached_property
    def preflight(self) -> Preflight:
        """What is still to be built, and whether the disk takes it."""
        shards = self.shards if self.scope is None else self.scope
        store = self.cache.store.name if self.cache.store else ""
        return Preflight(shards, self.cache.root, self.entry, self.builds, store)

    def artifact(self, shard: Shard) -> Artifact:
        """A shard's package: the user's own, from the cache, or built now; or an `AneError`."""
        self.before_build(shard)
        if shard.qualified not in self._artifacts:
            with self.progress.building(shard.qualified) as report:
                artifact = (self.elsewhere or self.build)(shard)
                report(artifact.size)
            self._artifacts[shard.qualified] = artifact
        return self._artifacts[shard.qualified]

    def build(self, shard: Shard) -> Artifact:
        """A shard, whatever its compression, from the cache or built now."""
        return build_shard(
            shard,
            self.cache,
            identity={} if shard.artifact else self.model(shard.model).identity,
            model=partial(self._buildable, shard.model),
            examine=partial(self._examine, shard),
            step=partial(self.progress.step, shard.qualified),
        )

    def _examine(self, shard: Shard, plain: Path, built: Path) -> None:
        # What is wrong with its probes or its reference, the gate says that needs them.
        if shard.reference == "float32" and self.judged(shard):
            with suppress(AneError):
                self._built_budget(shard, built, plain)

    def _built_budget(self, shard: Shard, built: Path, plain: Path | None) -> ErrorBudget:
        """Of a shard that is built; `plain` is converted once more where it is gone and needed."""
        model = self.model(shard.model)
        key = {"artifact": artifact_key(shard, model.identity)}

        def measured() -> ErrorBudget:
            package = plain or converted_package(shard, model.language_model)
            compressed = None if isinstance(shard.requested, Uncompressed) else built
            cases = self.cases(shard, Artifact(built), CpuBackend("float32"))
            return measure_budget(package, compressed, cases)

        return self._kept_budget(shard, key, measured)

    def budget(self, shard: Shard, artifact: Artifact) -> ErrorBudget | str:
        """What function, fp16 and compression each cost a shard, or why nobody can tell."""
        if shard.reference == "none":
            return "nothing is compared with a reference"
        if shard.pipeline:
            return "it is a pipeline, whose ML Programs have error budgets of their own"
        if shard.artifact is None:
            return self._built_budget(shard, artifact.path, None)
        program = read_model(artifact.path, function=shard.function)
        plain = uncompressed_package(shard, artifact, program)
        if plain is None and not shard.ports and (theirs := self.converted(shard)):
            plain = theirs if same_form(program, read_model(theirs)) else None
        if plain is None and shard.golden is None:
            return _NO_PACKAGE
        own = shard.reference == "float32"
        reference = shard.reference if isinstance(shard.reference, Path) else None
        told, digest = reference and content_digest(reference), plain and tree_digest(plain)
        key = {
            "artifact": artifact.digest,
            "uncompressed": digest,
            "reference": told,
            "source": self.model(shard.model).identity if own or shard.family else {},
            **({"function": shard.function} if shard.function else {}),
        }

        def measured() -> ErrorBudget:
            # A reference in fp16 is rounded too: in float32 it is held to the same bound.
            cases = self.cases(shard, artifact, CpuBackend("float32"))
            if plain is None:
                return measure_loss(artifact.path, cases, shard.function)
            compressed = None if digest == artifact.digest else artifact.path
            return measure_budget(
                plain, compressed, cases, function=shard.function, against_itself=told == digest,
                own=True, further=lambda: further_cases(
                    artifact.path, plain, shard.probes, shard.inputs, shard.function
                ),
            )  # fmt: skip

        budget = self._kept_budget(shard, key, measured)
        if plain is None:
            return budget
        named = plain in (shard.uncompressed, reference)
        return replace(budget, plain=plain.name if named else "its family's own")

    def converted(self, shard: Shard) -> Path | None:
        """What its family makes of a shard that the user brought, uncompressed; else None."""
        theirs = shard.artifact is not None and shard.function is None
        if not theirs or shard.reference != "float32" or not shard.family:
            return None
        asked = shard.model_copy(update={"artifact": None, "uncompressed": None})
        identity, model = self.model(shard.model).identity, partial(self._buildable, shard.model)
        return uncompressed(asked, self.cache, identity=identity, model=model).path

    def _kept_budget(
        self, shard: Shard, key: dict[str, Any], measure: Callable[[], ErrorBudget]
    ) -> ErrorBudget:
        asked = shard.reference == "float32" and shard.probes.of_prompts
        model = self.model(shard.model) if asked else None
        probed = {
            "prompts": model.prompt_spec if isinstance(model, OpenModel) else [],
            "budget": BUDGET_VERSION,
            "recording": RECORDING_VERSION,
            "generator": GENERATOR,
            "probes": shard.probes.model_dump(mode="json"),
            "inputs": [SAMPLER, questions(shard.inputs)],
            "shape": [shard.max_tokens, shard.context],
            **({"ports": shard.model_dump(mode="json", include={"ports"})} if shard.ports else {}),
        }

        def make(folder: Path) -> None:
            (folder / _BUDGET).write_text(json.dumps(asdict(measure())))

        folder = self.cache.get_or_make("budgets", key_digest(key | probed), make, shard.qualified)
        try:
            return _BUDGETS.validate_python(json.loads((folder / _BUDGET).read_text()))
        except (OSError, ValueError) as error:
            raise CacheError(
                f"{folder / _BUDGET} is damaged ({error}); delete the folder {folder} and run "
                "again."
            ) from error

    def _buildable(self, name: str) -> Buildable:
        """A model to build from; `BuildError` where the disk is plainly too small."""
        self.preflight.check()
        return self.model(name).language_model

    def cases(self, shard: Shard, artifact: Artifact, backend: Backend | None = None) -> list[Case]:
        """A shard's probes with what its reference makes of them; a package's runs on `backend`."""
        backend = self.backend if backend is None else backend
        if shard.reference == "float32":
            return self.model(shard.model).cases(shard)
        if shard.golden is not None:
            model = self.model(shard.model) if shard.family else None
            layout = model.layout(shard) if isinstance(model, OpenModel) else None
            golden = read_golden(shard.golden)
            if any(each in golden.origin for each in identities(artifact.path, shard.function)):
                raise GoldenError(
                    f"{shard.golden}: was recorded from {shard.qualified} itself, so comparing "
                    "proves nothing; record the float32 module, or the program before compression."
                )
            return golden_cases(golden, shard, layout, backend, artifact.path)
        reference = shard.reference if isinstance(shard.reference, Path) else None
        if reference is not None and reference.exists():
            mine = {*identities(artifact.path, shard.function)}
            if mine & {*identities(reference, counterpart(reference, shard.function))}:
                raise ProgramError(
                    f"{reference}: the reference is the artifact itself, whatever else its package "
                    "says, so comparing proves nothing; name an uncompressed package, or 'none'."
                )
        return package_cases(
            backend, artifact.path, reference, shard.probes, shard.inputs, shard.function
        )

    def ports(self, shard: Shard) -> Ports | None:
        """Inputs, outputs and states that a shard's family or builder declares.

        None for a package of neither. With golden tensors a family tells them, if without weights.
        """
        if shard.reference == "float32":
            return self.model(shard.model).ports(shard)
        model = self.model(shard.model) if shard.golden and shard.family else None
        if (tell := getattr(model and model.language_model, "ports", None)) is None:
            return None
        assert isinstance(model, OpenModel)
        return model.declared(shard, tell(shard.id))

    def open_shard(self, shard: Shard) -> OpenShard:
        """A shard as gates measure it."""
        return OpenShard(self, shard)

    def stack(self, name: str, arithmetic: Arithmetic = "typed") -> Stack:
        """A whole model, every shard built."""
        key = name, arithmetic
        if key not in self._stacks:
            model = self.model(name)
            assert isinstance(model, OpenModel)  # A builder's shards are no chain.
            shards = [shard for shard in self.shards if shard.model == name]
            artifacts = [(shard, self.artifact(shard)) for shard in shards]
            self._stacks[key] = Stack(model, artifacts, self.backend, arithmetic)
        return self._stacks[key]


class OpenShard:
    """A shard as gates measure it, a `ShardContext`; everything is made when first used."""

    def __init__(self, project: Project, shard: Shard) -> None:
        self.project, self.shard = project, shard
        self.ports = partial(project.ports, shard)
        self.converted = partial(project.converted, shard)

    @property
    def artifact(self) -> Artifact:
        """Its package: the user's own, or built; errors as of `Project.artifact`."""
        return self.project.artifact(self.shard)

    @cached_property
    def program(self) -> Program | Pipeline:
        """The package's program, or pipeline of such; weights are not decoded."""
        return read_any(self.artifact.path, function=self.shard.function)

    @property
    def backend(self) -> Backend:
        """What runs artifacts: of a package of several functions, the shard's."""
        return of_function(self.project.backend, self.shard.function)

    def cases(self) -> list[Case]:
        """Every probe with what the shard's reference makes of it."""
        return self.project.cases(self.shard, self.artifact)

    def budget(self) -> ErrorBudget | str:
        """Its error budget, or why there is none."""
        return self.project.budget(self.shard, self.artifact)


def package_of(named: Path, manifest: Path | None, cache: Path | None) -> tuple[Path, str | None]:
    """The package, and perhaps its function, that a path or the id of a manifest's shard names.

    What is no file is an id where there is a manifest; its package is built where the cache lacks
    it. `ManifestError` where an id names none or several, other errors as of `Project.artifact`.
    """
    known = manifest is not None or Path("shards.toml").is_file()
    if named.suffix in SUFFIXES or not known:
        return named, None
    project = read_project(manifest, cache, backend_name="cpu")
    if len(shards := select(project.manifest, str(named), "the package")) > 1:
        first = shards[0].qualified
        raise ManifestError(f"{named} names {len(shards)} shards; name one, such as {first}.")
    with project.use():
        return project.artifact(shards[0]).path, shards[0].function


def read_project(
    manifest: Path | None,
    cache: Path | None,
    arithmetic: tuple[Arithmetic, ...] = (),
    **options: Any,
) -> Project:
    """The project of a manifest, by default `shards.toml` here, with all its shards selected.

    `arithmetic` holds in place of the manifest's; `options` are other attributes of `Project`.
    """
    read = read_manifest(manifest or Path("shards.toml"))
    make_importable(read)
    if arithmetic:
        read = read.in_arithmetic(arithmetic)
    return Project(read, read.shards, cache, **options)
