"""The table of a search: measured candidates, in bytes and by the gates' figures."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import dropwhile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from pytest_ane.backends import Backend
from pytest_ane.gates import compression
from pytest_ane.gates.behaviour import BEHAVIOUR, measure
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Verdict
from pytest_ane.make import Artifact, Cache
from pytest_ane.manifest import Settings, Shard
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import BuildError, CacheError
from pytest_ane.mlprogram.metrics.logits import kl
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.strict_json import strict
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Streams
from pytest_ane.probes.cases import Case
from pytest_ane.probes.exact_chain import GoldenPrompt, run_all
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.report.table import columns
from pytest_ane.tools._recommend_builds import Builds, LoadedBackend, Menu
from pytest_ane.tools._recommend_search import Candidate, Choice, ShardFailure, Unit, units_of

# The log: every number that was measured, one JSON object a line, from which a search resumes.


class Log:
    """Measurements by key, kept in a file as they come.

    A last line that a killed process cut short is skipped, and so is whatever else is no entry.

    Args:
        file: made if need be, its folder too.
        context: what all measurements depend on; entries of another context are left alone.
    """

    def __init__(self, file: Path, context: object) -> None:
        self.file = file
        self._context = key_digest(context)[:16]
        self._entries: dict[str, dict[str, Any]] = {}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_bytes() if file.exists() else b""
        except OSError as error:
            raise CacheError(
                f"The log {file} cannot be read: {error.strerror}; choose another with --log."
            ) from None
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if entry["context"] == self._context:
                    self._entries[entry["key"]] = dict(entry["found"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, kind: str, subject: object) -> dict[str, Any] | None:
        """A measurement by its kind and subject, or None."""
        return self._entries.get(_key(kind, subject))

    def kept(
        self, kind: str, subject: object, measure: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A measurement by its kind and subject, made and kept if there is none."""
        if (entry := self.get(kind, subject)) is not None:
            return entry
        return self.put(kind, subject, measure())

    def put(self, kind: str, subject: object, measured: dict[str, Any]) -> dict[str, Any]:
        """Keep a measurement, with its subject for people; returns it as the log has it.

        Raises:
            CacheError: the log cannot be written.
        """
        key, measured = _key(kind, subject), strict(measured)
        self._entries[key] = measured
        entry = {"context": self._context, "kind": kind, "key": key}
        line = json.dumps(entry | {"of": subject, "found": measured})
        try:
            with self.file.open("ab", buffering=0) as file:
                # The break comes first: the line before may have been cut short.
                file.write(f"\n{line}".encode())
        except OSError as error:
            raise CacheError(
                f"The log {self.file} cannot be written: {error.strerror}; choose another with "
                "--log."
            ) from None
        return measured


def _key(kind: str, subject: object) -> str:
    return key_digest([kind, subject])[:16]


# Gates asked of candidates: measured and judged by the gates of the registry, and logged.

GATES_VERSION = 4
"""Raised when a gate measures or judges otherwise: what a log calls passed is asked again."""


@dataclass(frozen=True)
class CandidateShard:
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

    @cached_property
    def program(self) -> MLModel:
        """The package's program."""
        return read_model(self.artifact.path)


class Gates:
    """All gates of one model's candidates; what was measured once is read from the log."""

    def __init__(self, opened: OpenModel, builds: Builds, backend: LoadedBackend, log: Log) -> None:
        self._opened, self._builds, self._backend = opened, builds, backend
        self._log = log
        self.stacks_run = 0

    def known(self, shard: str, asked: Settings) -> dict[str, Any] | None:
        """What was measured of a shard so compressed."""
        return self._log.get("shard", [shard, asked.model_dump(mode="json")])

    def shard(self, id: str, asked: Settings) -> dict[str, Any]:
        """Verdict of every gate of shards, up to the first that fails."""

        def measured() -> dict[str, Any]:
            shard, artifact = self._builds.shards[id], self._builds.build(id, asked)
            subject = shard.model_copy(update={"compression": asked})
            *before, last = self._verdicts(subject, artifact)
            cosines = (v.values.get("cosine.min") for v in (*before, last) if v.gate == "fidelity")
            return {
                "bytes": artifact.size,
                "status": last.status,
                "gate": last.gate,
                "reasons": [f"{shard.qualified}: {f.reason}." for f in last.reasons],
                "cosine": next(cosines, None),
            }

        return self._log.kept("shard", [id, asked.model_dump(mode="json")], measured)

    def stack(self, asked: Mapping[str, Settings]) -> dict[str, Any]:
        """Behaviour of the whole model; without greedy text where it fails without."""
        what = {id: settings.model_dump(mode="json") for id, settings in asked.items()}
        return self._log.kept("stack", what, lambda: self._run_stack(asked))

    def _run_stack(self, asked: Mapping[str, Settings]) -> dict[str, Any]:
        self.stacks_run += 1
        policy = self._opened.model.policy.behaviour
        artifacts = [
            (s, self._builds.build(id, asked[id])) for id, s in self._builds.shards.items()
        ]
        self._backend.keep(artifact.path for _, artifact in artifacts)
        # Greedy text costs most of the time.
        short = [replace(g, greedy=(), leads=(), text="") for g in self._opened.golden]
        quick = policy.model_copy(update={"min_greedy": 0})
        verdicts: list[Verdict] = []
        for golden, asked_for in ((short, quick), (self._opened.golden, policy)):
            verdicts = [
                self._judged(Stack(self._opened, artifacts, self._backend, a), golden, asked_for)
                for a in self._opened.model.arithmetic
            ]
            if any(verdict.status != "passed" for verdict in verdicts):
                break
        return {
            "status": min((verdict.status for verdict in verdicts), key=STATUSES.index),
            "reasons": [f"{f.reason}." for verdict in verdicts for f in verdict.reasons],
            "facts": {k: v for k, v in verdicts[0].values.items() if not isinstance(v, str)},
        }

    def cosine(self, shard: str, artifact: Artifact) -> float:
        """The lowest cosine of a shard's probes; -1 where there is none."""
        typed = self._builds.shards[shard].in_arithmetic(("typed",))
        candidate = self._candidate(typed, artifact)
        figures = FIDELITY.figures(FIDELITY.measure(candidate))
        cosine = next((float(f.value) for f in figures if f.name == "cosine.min"), math.nan)
        return -1.0 if math.isnan(cosine) else cosine

    def first(self, shard: Shard, artifact: Artifact) -> Verdict:
        """Verdict of the first gate of shards: the cheapest, which runs nothing."""
        return next(self._verdicts(shard, artifact))

    def _verdicts(self, subject: Shard, artifact: Artifact) -> Iterator[Verdict]:
        gates = (g for g in GATES.values() if g.scope == "shard" and g.marker == "gate"
                 and g.asks(subject))  # fmt: skip
        for gate, each in ((g, s) for g in gates for s in g.subjects(subject, simulates=True)):
            assert isinstance(each, Shard)
            measurement = gate.measure(self._candidate(each, artifact))
            yield (verdict := gate.judge(measurement, gate.policy(each.policy), each))
            if verdict.status != "passed":
                return

    def _candidate(self, shard: Shard, artifact: Artifact) -> CandidateShard:
        return CandidateShard(shard, artifact, self._backend, lambda: self._opened.cases(shard))

    def _judged(
        self, stack: Stack, golden: Sequence[GoldenPrompt], policy: BehaviourPolicy
    ) -> Verdict:
        typed = stack.typed if stack.arithmetic == "ane" else None
        measurement = measure(
            stack.chain, golden, stack.states, stack.decode, stack.provenance, typed,
            lambda: stack.rules,
        )  # fmt: skip
        return BEHAVIOUR.judge(measurement, policy, self._opened.model)


# Evaluates candidate settings: choices, build cost, gate results.

_UNITS = TypeAdapter(tuple[Unit, ...])
_BROKEN = 1e3
"""Nats counted for a unit that alone makes logits NaN: out of the question."""


class ModelEvaluator:
    """Measures candidates of one model, and keeps every number.

    Args:
        opened: the model.
        cache: where shards are built; what a killed search built is found there again.
        backend: runs them.
        menu: the settings.
        log: keeps every number.
        minutes: how long to go on measuring; a measurement that has begun is finished.
        evaluations: whole stacks to measure at most.
        progress: shows the work at hand, a short text.
    """

    def __init__(
        self,
        opened: OpenModel,
        cache: Cache,
        backend: Backend,
        menu: Menu,
        log: Log,
        *,
        minutes: float = math.inf,
        evaluations: float = math.inf,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._opened, self._log, self._progress = opened, log, progress
        self._backend = LoadedBackend(backend)
        self._builds = Builds(opened, cache, menu)
        self._gates = Gates(opened, self._builds, self._backend, log)
        self._half = time.monotonic() + minutes * 30
        self._until = time.monotonic() + minutes * 60
        self._most = evaluations
        self._units: dict[str, tuple[Unit, ...]] = {}

    @property
    def spent(self) -> bool:
        """Whether time or evaluations are used up."""
        return time.monotonic() > self._until or self._gates.stacks_run >= self._most

    @property
    def measured(self) -> int:
        """Whole stacks that were run, not read from the log."""
        return self._gates.stacks_run

    def units(self) -> tuple[Unit, ...]:
        """All units, in running order; builds every shard with every setting."""
        for i, wire in enumerate(self._opened.wiring):
            menu = {name: setting_keys(each) for name, each in self._builds.menu.items()}
            what = [wire.shard, menu]
            note = f"building {wire.shard} ({i + 1} of {len(self._opened.wiring)})"
            entry = self._log.kept("units", what, partial(self._built_units, wire.shard, note))
            self._units[wire.shard] = _UNITS.validate_python(entry["units"])
        return tuple(unit for units in self._units.values() for unit in units)

    def _built_units(self, id: str, note: str) -> dict[str, Any]:
        """A shard's units; settings that the first gate, placement, refuses are no options."""
        self._progress(note)
        shard, built = self._builds.shards[id], {}
        for name in self._builds.menu:
            artifact = self._builds.all_with(id, name)
            if self._gates.first(shard, artifact).status == "passed":
                program = read_model(artifact.path)
                built[name] = compression.measure(shard, artifact, program)
        if not built:
            raise BuildError(
                f"{shard.qualified}: no setting of the menu passes the placement gate; choose "
                "others."
            )
        return {"units": [asdict(unit) for unit in units_of(id, built, shard.requested.keep)]}

    def losses(self) -> dict[Unit, float]:
        """KL per squared error of every unit, measured alone in an otherwise exact stack.

        Once half of the time is up, what is left gets the mean of the same weights elsewhere, or
        of all; nothing if none was measured.
        """
        units = [unit for units in self._units.values() for unit in units]
        losses: dict[Unit, float] = {}
        exact: list[ExactStack] = []
        for i, unit in enumerate(units):
            pivot = unit.options[max(len(unit.options) // 2 - 1, 0)]
            what = [unit.shard, unit.glob, pivot.setting]
            entry = self._log.get("alone", what)
            if entry is None and time.monotonic() < self._half:
                self._progress(f"sensitivity of {unit} ({i + 1} of {len(units)})")
                alone = exact[0] if exact else self._exact()
                exact = [alone]
                with self._builds.only(unit, pivot.setting) as artifact:
                    kl = alone.kl(self._step(unit.shard, artifact))
                entry = {"kl": kl, "sse": pivot.sse, "bytes": pivot.size}
                self._log.put("alone", what, entry)
            if entry is not None:
                kl = max(float(entry["kl"]), 0.0) if math.isfinite(float(entry["kl"])) else _BROKEN
                losses[unit] = kl / pivot.sse if pivot.sse else 0.0
        self._backend.keep(())
        return filled(units, losses)

    def compression(self, choice: Choice) -> dict[str, Settings]:
        """The compression of every shard under a choice, by id."""
        return self._builds.settings(self._units, choice)

    def failure(self, shard: str, choice: Choice) -> ShardFailure | None:
        """The first gate that a shard fails under a choice; None where it passes all."""
        result = self._gates.shard(shard, self.compression(choice)[shard])
        if result["status"] == "passed":
            return None
        gate, blame = result["gate"], {}
        if gate == "fidelity":
            blame = {unit: self._blame(unit, choice[unit]) for unit in self._units[shard]}
        return ShardFailure(gate, result["reasons"][0], blame)

    def candidate(self, name: str, choice: Choice) -> Candidate:
        """All gates of a whole model.

        Where the stack has failed, shards are not measured that were not before.
        """
        self._progress(f"measuring {name}")
        settings = self.compression(choice)
        stack = self._gates.stack(settings)
        size = sum(self._builds.build(id, each).size for id, each in settings.items())
        shards = [
            self._gates.shard(id, each)
            for id, each in settings.items()
            if stack["status"] == "passed" or self._gates.known(id, each)
        ]
        reasons = [*stack["reasons"], *(reason for shard in shards for reason in shard["reasons"])]
        statuses = {stack["status"], *(shard["status"] for shard in shards)}
        status = next(each for each in STATUSES if each in statuses)
        facts = {k: float(v) for k, v in stack["facts"].items()}
        facts["cosine"] = lowest([shard["cosine"] for shard in shards])
        summary = {"name": name, "bytes": size, "status": status, "reasons": reasons}
        self._log.put("candidate", {str(u): s for u, s in choice.items()}, summary)
        kl = facts.get("kl.mean", math.nan)
        return Candidate(name, choice, size, kl, status, tuple(reasons), facts)

    def _blame(self, unit: Unit, setting: str) -> float:
        """1 - the lowest cosine of the shard with only this unit compressed."""

        def measured() -> dict[str, Any]:
            with self._builds.only(unit, setting) as artifact:
                return {"cosine": self._gates.cosine(unit.shard, artifact)}

        entry = self._log.kept("blame", [unit.shard, unit.glob, setting], measured)
        return 1 - float(entry["cosine"])

    def _exact(self) -> ExactStack:
        plain = [(shard, self._builds.plain(id)) for id, shard in self._builds.shards.items()]
        self._backend.keep(artifact.path for _, artifact in plain)
        stack = Stack(self._opened, plain, self._backend)
        return ExactStack(stack.chain, stack.golden)

    def _step(self, shard: str, artifact: Artifact) -> ChainStep:
        """The step of one artifact in a chain of uncompressed ones."""
        by_id = {id: self._builds.plain(id) for id in self._builds.shards} | {shard: artifact}
        mixed = [(each, by_id[id]) for id, each in self._builds.shards.items()]
        steps = Stack(self._opened, mixed, self._backend).chain.steps
        return next(step for step in steps if step.shard == shard)


def filled(units: Sequence[Unit], measured: Mapping[Unit, float]) -> dict[Unit, float]:
    """Losses of all units: as measured, else the mean of those of the same name, else of all."""
    if not measured:
        return {}
    named: dict[str, list[float]] = {}
    for unit, loss in measured.items():
        named.setdefault(unit.glob, []).append(loss)
    rest = list(measured.values())
    return {unit: measured.get(unit, fmean(named.get(unit.glob, rest))) for unit in units}


def lowest(cosines: Sequence[float | None]) -> float:
    """The lowest cosine; NaN if one is NaN or None, which `min` would hide, or without any."""
    known = [math.nan if cosine is None else float(cosine) for cosine in cosines]
    return float(np.min(known)) if known else math.nan


class ExactStack:
    """An exact chain that has run over the golden prompts up to every step.

    A stack in which one step is replaced is then run from that step only.
    """

    def __init__(self, chain: Chain, golden: Sequence[GoldenPrompt]) -> None:
        self._steps, self._golden = chain.steps, golden
        self._before: dict[str, list[Streams]] = {}
        streams: list[Streams] = [{"x": chain.embed(prompt.ids)} for prompt in golden]
        for step in chain.steps:
            self._before[step.shard] = list(map(dict, streams))
            run_all(step, streams)

    def kl(self, step: ChainStep) -> float:
        """Mean KL(reference || stack) in nats with this step in place of the exact one.

        Position 0 of every prompt is left out, as the behaviour gate does.
        """
        streams = list(map(dict, self._before[step.shard]))
        after = list(dropwhile(lambda other: other.shard != step.shard, self._steps))[1:]
        for each in (step, *after):
            run_all(each, streams)
        divergences: list[float] = []
        for prompt, stream in zip(self._golden, streams, strict=True):
            pair = (x[1:].astype(np.float64) for x in (prompt.logits, stream["logits"]))
            divergences += kl(*pair).tolist()
        return float(np.mean(divergences))


# The table of a search: measured candidates, in bytes and by the gates' figures.

_HEAD = ("candidate", "MB", "cosine", "top-1", "KL", "centred", "verdict")


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that no other beats in bytes and in KL at once, smallest first."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.size, _or_inf(c.kl))):
        if not kept or _or_inf(candidate.kl) < min(_or_inf(c.kl) for c in kept):
            kept.append(candidate)
    return kept


def table(candidates: Sequence[Candidate], marked: Candidate | None) -> Iterator[str]:
    """Lines of the table; the recommended one is marked."""
    shown = pareto(candidates)
    extra = [c for c in candidates if c.passed and c not in shown]
    rows = [_row(c, marked) for c in sorted([*shown, *extra], key=lambda c: c.size)]
    yield from columns([_HEAD, *rows], last=True)


def line(candidate: Candidate) -> str:
    """`mixed 3: 105.1 MB, KL 0.0381, passed`, or the first reason why not."""
    kl = f", KL {candidate.kl:.4f}" if not math.isnan(candidate.kl) else ""
    head = f"{candidate.name}: {candidate.size / 1e6:.1f} MB{kl}"
    if candidate.passed:
        return f"{head}, passed"
    more = f" (and {len(candidate.reasons) - 1} more)" if len(candidate.reasons) > 1 else ""
    return f"{head}, {candidate.status}: {candidate.reasons[0]}{more}"


def _row(candidate: Candidate, marked: Candidate | None) -> tuple[str, ...]:
    facts = candidate.facts
    return (
        candidate.name,
        f"{candidate.size / 1e6:.1f}",
        _number(facts.get("cosine"), ".4f"),
        _number(facts.get("top1"), ".1%"),
        _number(candidate.kl, ".4f"),
        _number(facts.get("centred_cosine.min"), ".4f"),
        f"{candidate.status}, recommended" if candidate is marked else candidate.status,
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, form)


def _or_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value
