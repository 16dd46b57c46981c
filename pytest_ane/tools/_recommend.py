"""What a search measures: candidates of one model, built, judged by every gate, and logged."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter, ValidationError

from pytest_ane import make
from pytest_ane.backends import Backend, CpuBackend
from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.cli.output import tell
from pytest_ane.gates import compression
from pytest_ane.gates.behaviour import BEHAVIOUR, measure
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Verdict
from pytest_ane.make import Artifact, Cache
from pytest_ane.make.disk import temporary_files_in
from pytest_ane.make.shard import BUILD_VERSION
from pytest_ane.manifest import Compression, Linear, Model, Palettize, Settings, Shard, Uncompressed
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import BuildError, CacheError, ManifestError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.metrics.logits import kl
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.strict_json import first_error, strict
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.probes.cases import Case
from pytest_ane.probes.exact_chain import GoldenPrompt
from pytest_ane.probes.recording import RECORDING_VERSION
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.tools._recommend_search import (
    Candidate,
    Choice,
    Failure,
    Unit,
    shard_settings,
    units_of,
)
from pytest_ane.tools.bisect import StackRunner
from pytest_ane.tools.compress import read_table

Menu: TypeAlias = Mapping[str, Settings]
DEFAULT: Menu = {
    "4-bit k-means g16": Palettize(nbits=4, group_size=16),
    "4-bit k-means g4": Palettize(nbits=4, group_size=4),
    "6-bit k-means g16": Palettize(nbits=6, group_size=16),
    "6-bit k-means g4": Palettize(nbits=6, group_size=4),
    "int8 per channel": Linear(),
    "8-bit k-means g16": Palettize(nbits=8, group_size=16),
}
"""What is tried unless `--menu` says otherwise."""
_MENU: TypeAdapter[dict[str, Settings]] = TypeAdapter(dict[str, Compression])


def menu_of(file: Path | None) -> Menu:
    """The settings to choose from, the file's or the default; `ManifestError` for another menu."""
    if file is None:
        return DEFAULT
    try:
        menu = _MENU.validate_python(read_table("--menu", file))
    except ValidationError as error:
        raise ManifestError(f"--menu {file}: {first_error(error)}.") from None
    if len(menu) < 2:
        raise ManifestError(f"{file}: a menu needs at least two settings to choose from; add one.")
    for name, setting in menu.items():
        if setting.keep or setting.overrides:
            raise ManifestError(
                f"{file}: {name!r} has keep or overrides; a setting of a menu is for any weight, "
                "so leave them out (the model's own compression.keep is kept)."
            )
    return menu


def check_searchable(model: Model) -> None:
    """`ManifestError` with the sentence why nothing can be recommended for a model, if so."""
    if model.family is None:
        raise ManifestError(
            f"{model.name} has no family, so its shards are not compressed here; recommend needs a "
            "family and a source."
        )
    if not model.prompts:
        raise ManifestError(
            f"{model.name} has no golden prompts, and without them nobody knows what compression "
            "does to the whole stack; add [[models.NAME.prompts]]."
        )
    for shard in model.shards:
        if shard.artifact is not None:
            raise ManifestError(
                f"{shard.qualified} is a package of your own, which is not compressed here; "
                "recommend needs shards that are all built from the source."
            )
        for gate in GATES.values():
            if gate.recordable and shard.policy.requires_evidence(gate.name):
                raise ManifestError(
                    f"{shard.qualified}: policy.{gate.name} asks for what a device measured, which "
                    "candidates do not have; search without it, and record evidence of the result."
                )


class LoadedBackend(CpuBackend):
    """The CPU executor with the runners of some artifacts kept: stacks share most shards."""

    def __init__(self, arithmetic: Arithmetic = "typed") -> None:
        super().__init__(arithmetic=arithmetic)
        self._kept: frozenset[Path] = frozenset()
        self._loaded: dict[tuple[Path, str | None], CpuRunner] = {}

    def keep(self, artifacts: Iterable[Path]) -> None:
        """Let the runners of these artifacts stay from now on; all others are dropped."""
        self._kept = frozenset(artifacts)
        self._loaded = {key: run for key, run in self._loaded.items() if key[0] in self._kept}

    def load(self, artifact: Path, function: str | None = None) -> CpuRunner:
        key = artifact, function
        runner = self._loaded.get(key) or super().load(artifact, function)
        if artifact in self._kept:
            self._loaded[key] = runner
        return runner

    @cached_property
    def _simulated(self) -> LoadedBackend:
        return LoadedBackend("ane")

    def simulated(self) -> LoadedBackend:
        self._simulated.keep(self._kept)
        return self._simulated


class Log:
    """Measurements by key, kept in a file as they come; those of another context are left alone.

    Whatever is no entry is skipped. `CacheError` where the file cannot be read, or written.
    """

    def __init__(self, file: Path, context: object) -> None:
        self.file = file
        self._context = key_digest(context)[:16]
        self._entries: dict[str, dict[str, Any]] = {}
        with self._reached("read"):
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = file.read_bytes().splitlines() if file.exists() else []
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                entry = json.loads(line)
                if entry["context"] == self._context:
                    self._entries[entry["key"]] = dict(entry["found"])

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, kind: str, subject: object) -> dict[str, Any] | None:
        return self._entries.get(_key(kind, subject))

    def kept(
        self, kind: str, subject: object, measure: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A measurement by its kind and subject, made and kept if there is none."""
        entry = self.get(kind, subject)
        return self.put(kind, subject, measure()) if entry is None else entry

    def put(self, kind: str, subject: object, measured: dict[str, Any]) -> dict[str, Any]:
        """Keep a measurement, with its subject for people; returns it as the log has it."""
        key, measured = _key(kind, subject), strict(measured)
        self._entries[key] = measured
        entry = {"context": self._context, "kind": kind, "key": key}
        line = json.dumps(entry | {"of": subject, "found": measured})
        with self._reached("written"), self.file.open("ab", buffering=0) as file:
            # The break comes first: the line before may have been cut short.
            file.write(f"\n{line}".encode())
        return measured

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CacheError(
                f"The log {self.file} cannot be {what}: {error.strerror}; choose another with "
                "--log."
            ) from None


def _key(kind: str, subject: object) -> str:
    return key_digest([kind, subject])[:16]


GATES_VERSION = 4
"""Raised when a gate measures or judges otherwise: what a log calls passed is asked again."""
_UNITS = TypeAdapter(tuple[Unit, ...])
_BROKEN = 1e3
"""Nats counted for a unit that alone makes logits NaN: out of the question."""


@dataclass(frozen=True)
class _CandidateShard:
    """A shard with one of its packages (`gates.ShardContext`)."""

    shard: Shard
    artifact: Artifact
    backend: Backend
    cases: Callable[[], list[Case]]

    def budget(self) -> str:
        """Not told apart: every position is held to `min-cosine` then, which is stricter."""
        return "candidates have no error budget"

    def ports(self) -> None:
        """Not asked: it is converted from what is declared."""

    def converted(self) -> None:
        """Not asked: its build compared its weights."""

    @cached_property
    def program(self) -> MLModel:
        return read_model(self.artifact.path)


def log_of(file: Path | None, opened: OpenModel, cache: Cache, backend: Backend) -> Log:
    """The log of a search: its context is all that decides a measurement besides the candidate."""
    model = opened.model
    context = {
        "identity": opened.identity,
        "backend": backend.provenance(),
        "versions": [BUILD_VERSION, RECORDING_VERSION, GATES_VERSION],
        "prompts": opened.prompt_spec,
        "policy": model.policy.model_dump(mode="json"),
        "shards": [s.model_dump(mode="json", exclude={"compression"}) for s in model.shards],
        "keep": [list(shard.requested.keep) for shard in model.shards],
    }
    return Log(file or cache.root / "recommend" / f"{model.name}.jsonl", context)


class ModelEvaluator:
    """Measures candidates of one model, and keeps every number.

    A measurement that has begun is finished when the `minutes` are over; `evaluations` are whole
    stacks, of which `measured` were run and not read from the log.
    """

    def __init__(
        self,
        opened: OpenModel,
        cache: Cache,
        menu: Menu,
        log: Log,
        *,
        minutes: float,
        evaluations: float,
    ) -> None:
        self.measured = 0
        self._opened, self._cache, self._log, self._menu = opened, cache, log, menu
        self._backend = LoadedBackend()
        self._shards: Mapping[str, Shard] = {shard.id: shard for shard in opened.model.shards}
        self._begun, self._seconds, self._most = time.monotonic(), minutes * 60, evaluations
        self._units: dict[str, tuple[Unit, ...]] = {}
        self._uncompressed = lru_cache(None)(
            lambda id: make.uncompressed(self._shards[id], cache, **self._source)
        )
        self._source: dict[str, Any] = {
            "identity": opened.identity, "model": lambda: opened.language_model,
        }  # fmt: skip

    @property
    def spent(self) -> bool:
        return self._is_late(1.0) or self.measured >= self._most

    def _is_late(self, share: float) -> bool:
        return time.monotonic() > self._begun + share * self._seconds

    def units(self) -> tuple[Unit, ...]:
        """All units, in running order; builds every shard with every setting."""
        menu = {name: setting_keys(each) for name, each in self._menu.items()}
        for i, wire in enumerate(self._opened.wiring, 1):
            tell(f"building {wire.shard} ({i} of {len(self._opened.wiring)})")
            built = partial(self._built_units, wire.shard)
            entry = self._log.kept("units", [wire.shard, menu], built)
            self._units[wire.shard] = _UNITS.validate_python(entry["units"])
        return tuple(chain.from_iterable(self._units.values()))

    def _built_units(self, id: str) -> dict[str, Any]:
        shard, built = self._shards[id], {}
        keep = list(shard.requested.keep)
        for name, setting in self._menu.items():
            keys = setting_keys(setting) | {"keep": keep}
            artifact = self._build(id, type(setting).model_validate(keys))
            if next(self._verdicts(shard, artifact)).status == "passed":
                built[name] = compression.measure(shard, artifact, read_model(artifact.path))
        if not built:
            raise BuildError(
                f"{shard.qualified}: no setting of the menu passes the placement gate; choose "
                "others."
            )
        return {"units": [asdict(unit) for unit in units_of(id, built, keep)]}

    def losses(self) -> dict[Unit, float]:
        """KL per squared error of every unit, measured alone in an otherwise exact stack.

        Once half of the time is up, what is left gets the mean of the same weights elsewhere, or
        of all; nothing if none was measured.
        """
        units = [*chain.from_iterable(self._units.values())]
        losses: dict[Unit, float] = {}
        exact: ExactStack | None = None
        for i, unit in enumerate(units, 1):
            pivot = unit.options[max(len(unit.options) // 2 - 1, 0)]
            what = [unit.shard, unit.glob, pivot.setting]
            entry = self._log.get("alone", what)
            if entry is None and not self._is_late(0.5):
                tell(f"sensitivity of {unit} ({i} of {len(units)})")
                if exact is None:
                    self._backend.keep(self._uncompressed(id).path for id in self._shards)
                    plain = self._plain_stack({})
                    exact = ExactStack(plain.chain, plain.golden)
                with self._only(unit, pivot.setting) as artifact:
                    steps = self._plain_stack({unit.shard: artifact}).chain.steps
                    alone = exact.kl(next(step for step in steps if step.shard == unit.shard))
                entry = {"kl": alone, "sse": pivot.sse, "bytes": pivot.size}
                self._log.put("alone", what, entry)
            if entry is not None:
                nats = float(entry["kl"])
                nats = max(nats, 0.0) if math.isfinite(nats) else _BROKEN
                losses[unit] = nats / pivot.sse if pivot.sse else 0.0
        self._backend.keep(())
        return filled(units, losses)

    def compression(self, choice: Choice) -> dict[str, Settings]:
        """The compression of every shard under a choice, by id."""
        return {
            id: shard_settings(self._units[id], choice, self._menu, shard.requested.keep)
            for id, shard in self._shards.items()
        }

    def failure(self, shard: str, choice: Choice) -> Failure | None:
        result = self._judge_shard(shard, self.compression(choice)[shard])
        if result["status"] == "passed":
            return None
        units = self._units[shard] if result["gate"] == "fidelity" else ()
        return result["gate"], {unit: self._blame(unit, choice[unit]) for unit in units}

    def candidate(self, name: str, choice: Choice) -> Candidate:
        """All gates of a whole model; where the stack fails, of shards what was measured before."""
        tell(f"measuring {name}")
        settings = self.compression(choice)
        dumped = {id: each.model_dump(mode="json") for id, each in settings.items()}
        stack = self._log.kept("stack", dumped, partial(self._run_stack, settings))
        size = sum(self._build(id, each).size for id, each in settings.items())
        shards = [
            self._judge_shard(id, each)
            for id, each in settings.items()
            if stack["status"] == "passed" or self._log.get("shard", [id, dumped[id]])
        ]
        reasons = [reason for each in (stack, *shards) for reason in each["reasons"]]
        status = _worst(each["status"] for each in (stack, *shards))
        facts = {k: float(v) for k, v in stack["facts"].items()}
        facts["cosine"] = lowest([shard["cosine"] for shard in shards])
        summary = {"name": name, "bytes": size, "status": status, "reasons": reasons}
        self._log.put("candidate", {str(u): s for u, s in choice.items()}, summary)
        nats = facts.get("kl.mean", math.nan)
        return Candidate(name, choice, size, nats, status, tuple(reasons), facts)

    # Packages, compressed from uncompressed ones, which are converted once.

    def _build(self, shard: str, settings: Settings) -> Artifact:
        asked = self._shards[shard].model_copy(update={"compression": settings})
        plain = self._uncompressed(shard)
        return make.build_shard(asked, self._cache, source=plain, **self._source)

    @contextmanager
    def _only(self, unit: Unit, setting: str) -> Iterator[Artifact]:
        shard = self._shards[unit.shard]
        override = {"weights": unit.glob} | setting_keys(self._menu[setting])
        table = {"method": "none", "overrides": [override], "keep": list(shard.requested.keep)}
        alone = shard.model_copy(update={"compression": Uncompressed.model_validate(table)})
        plain = self._uncompressed(unit.shard)
        with tempfile.TemporaryDirectory(prefix="pytest-ane-") as folder:
            # coremltools' own temporary files go with the folder.
            with temporary_files_in(Path(folder)):
                artifact = make.compressed(alone, plain, Path(folder))
            yield artifact

    def _plain_stack(self, others: Mapping[str, Artifact]) -> Stack:
        plain = {id: others.get(id) or self._uncompressed(id) for id in self._shards}
        artifacts = [(self._shards[id], artifact) for id, artifact in plain.items()]
        return Stack(self._opened, artifacts, self._backend)

    # Verdicts of candidates.

    def _judge_shard(self, id: str, asked: Settings) -> dict[str, Any]:
        def measured() -> dict[str, Any]:
            shard, artifact = self._shards[id], self._build(id, asked)
            subject = shard.model_copy(update={"compression": asked})
            verdicts = list(self._verdicts(subject, artifact))
            cosines = (v.values.get("cosine.min") for v in verdicts if v.gate == "fidelity")
            return {
                "bytes": artifact.size,
                "status": verdicts[-1].status,
                "gate": verdicts[-1].gate,
                "reasons": [f"{shard.qualified}: {f.reason}." for f in verdicts[-1].reasons],
                "cosine": next(cosines, None),
            }

        return self._log.kept("shard", [id, asked.model_dump(mode="json")], measured)

    def _verdicts(self, subject: Shard, artifact: Artifact) -> Iterator[Verdict]:
        for gate in GATES.values():
            if gate.scope != "shard" or gate.marker != "gate" or not gate.asks(subject):
                continue
            for each in gate.subjects(subject, simulates=True):
                assert isinstance(each, Shard)
                measurement = gate.measure(self._context(each, artifact))
                yield (verdict := gate.judge(measurement, gate.policy(each.policy), each))
                if verdict.status != "passed":
                    return

    def _context(self, shard: Shard, artifact: Artifact) -> _CandidateShard:
        return _CandidateShard(shard, artifact, self._backend, lambda: self._opened.cases(shard))

    def _run_stack(self, asked: Mapping[str, Settings]) -> dict[str, Any]:
        self.measured += 1
        model = self._opened.model
        artifacts = [(s, self._build(id, asked[id])) for id, s in self._shards.items()]
        self._backend.keep(artifact.path for _, artifact in artifacts)

        def judge(stack: Stack, golden: Sequence[GoldenPrompt], policy: BehaviourPolicy) -> Verdict:
            measurement = measure(
                stack.chain, golden, stack.states, stack.decode, stack.provenance,
                stack.typed if stack.arithmetic == "ane" else None, lambda: stack.rules,
            )  # fmt: skip
            return BEHAVIOUR.judge(measurement, policy, model)

        # Greedy text costs most of the time.
        short = [replace(g, greedy=(), leads=(), text="") for g in self._opened.golden]
        quick = model.policy.behaviour.model_copy(update={"min_greedy": 0})
        verdicts: list[Verdict] = []
        for golden, policy in ((short, quick), (self._opened.golden, model.policy.behaviour)):
            stacks = (Stack(self._opened, artifacts, self._backend, a) for a in model.arithmetic)
            verdicts = [judge(stack, golden, policy) for stack in stacks]
            if any(verdict.status != "passed" for verdict in verdicts):
                break
        return {
            "status": _worst(verdict.status for verdict in verdicts),
            "reasons": [f"{f.reason}." for verdict in verdicts for f in verdict.reasons],
            "facts": {k: v for k, v in verdicts[0].values.items() if not isinstance(v, str)},
        }

    def _blame(self, unit: Unit, setting: str) -> float:
        """1 - the lowest cosine of the shard's probes with only this unit compressed; 2: none."""

        def measured() -> dict[str, Any]:
            typed = self._shards[unit.shard].in_arithmetic(("typed",))
            with self._only(unit, setting) as artifact:
                figures = FIDELITY.figures(FIDELITY.measure(self._context(typed, artifact)))
            cosine = next((float(f.value) for f in figures if f.name == "cosine.min"), math.nan)
            return {"cosine": -1.0 if math.isnan(cosine) else cosine}

        entry = self._log.kept("blame", [unit.shard, unit.glob, setting], measured)
        return 1 - float(entry["cosine"])


def _worst(statuses: Iterable[Any]) -> Any:
    return min(statuses, key=STATUSES.index)


def filled(units: Sequence[Unit], measured: Mapping[Unit, float]) -> dict[Unit, float]:
    """Losses of all units: as measured, else the mean of those of the same name, else of all."""
    named = grouped((unit.glob, loss) for unit, loss in measured.items())
    rest = [*measured.values()]
    return {u: measured.get(u, fmean(named.get(u.glob, rest))) for u in units if measured}


def lowest(cosines: Sequence[float | None]) -> float:
    """The lowest cosine; NaN if one is NaN or None, which `min` would hide, or without any."""
    return float(np.min([math.nan if each is None else each for each in cosines or [None]]))


class ExactStack:
    """An exact chain in which one step at a time is replaced; what comes before it runs once."""

    def __init__(self, chain: Chain, golden: Sequence[GoldenPrompt]) -> None:
        self._chain = chain
        self._golden = [replace(prompt, greedy=()) for prompt in golden]
        self._runner = StackRunner(self._golden)

    def kl(self, step: ChainStep) -> float:
        """Mean KL(reference || stack) in nats with this step, from position 1 of prompts on."""
        steps = tuple(step if each.shard == step.shard else each for each in self._chain.steps)
        stack = self._runner.run(replace(self._chain, steps=steps))
        divergences: list[float] = []
        for prompt in self._golden:
            pair = (x[1:].astype(np.float64) for x in (prompt.logits, stack.logits(prompt.ids)))
            divergences += kl(*pair).tolist()
        return float(np.mean(divergences))
