"""Evaluates candidate settings: choices, build cost, gate results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import dropwhile
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from pytest_ane.backends import Backend
from pytest_ane.gates import compression
from pytest_ane.make import Artifact, Cache
from pytest_ane.manifest import Settings
from pytest_ane.manifest.compression import setting_keys
from pytest_ane.mlprogram.errors import BuildError
from pytest_ane.mlprogram.metrics.logits import kl
from pytest_ane.mlprogram.model import read_model
from pytest_ane.models.chain import Chain, ChainStep
from pytest_ane.models.families import Streams
from pytest_ane.probes.exact_chain import run_all
from pytest_ane.probes.golden_prompts import GoldenPrompt
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.tools._recommend.builds import Builds, LoadedBackend
from pytest_ane.tools._recommend.gates import Gates
from pytest_ane.tools._recommend.log import Log
from pytest_ane.tools._recommend.menu import Menu
from pytest_ane.tools._recommend.search import Candidate, ShardFailure
from pytest_ane.tools._recommend.units import Choice, Unit, units_of

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
        if result["passed"]:
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
            if stack["passed"] or self._gates.known(id, each)
        ]
        reasons = [*stack["reasons"], *(reason for shard in shards for reason in shard["reasons"])]
        passed = stack["passed"] and all(shard["passed"] for shard in shards)
        facts = {k: float(v) for k, v in stack["facts"].items()}
        facts["cosine"] = lowest([shard["cosine"] for shard in shards])
        summary = {"name": name, "bytes": size, "passed": passed, "reasons": reasons}
        self._log.put("candidate", {str(u): s for u, s in choice.items()}, summary)
        kl = facts.get("kl.mean", math.nan)
        return Candidate(name, choice, size, kl, passed, tuple(reasons), facts)

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
