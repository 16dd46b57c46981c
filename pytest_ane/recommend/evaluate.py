"""The bench of a search over one model: what there is to choose, and what that costs and yields."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from pytest_ane.backends import Backend
from pytest_ane.build import Artifact, Cache
from pytest_ane.chain.chain import ChainStep
from pytest_ane.core.errors import BuildError
from pytest_ane.gates import compression
from pytest_ane.manifest import Settings
from pytest_ane.mil import read_model
from pytest_ane.recommend.alone import Alone
from pytest_ane.recommend.builds import Builds, Opened
from pytest_ane.recommend.gates import Gates, Stacks
from pytest_ane.recommend.keeping import Keeping
from pytest_ane.recommend.log import Log
from pytest_ane.recommend.mend import Trouble
from pytest_ane.recommend.menu import Menu
from pytest_ane.recommend.search import Candidate
from pytest_ane.recommend.units import Choice, Unit, from_data, said, to_data, units_of

_BROKEN = 1e3
"""Nats counted for a unit that alone makes logits NaN: out of the question."""


class Measuring:
    """Measures, and keeps every number.

    Args:
        opened: the model.
        cache: where shards are built; what a killed search built is found there again.
        backend: runs them.
        stacks: chains artifacts.
        menu: the settings.
        log: keeps every number.
        minutes: how long to go on measuring; what has begun is finished.
        evaluations: whole stacks to measure at most.
        say: shows what is going on.
    """

    def __init__(
        self,
        opened: Opened,
        cache: Cache,
        backend: Backend,
        stacks: Stacks,
        menu: Menu,
        log: Log,
        *,
        minutes: float = math.inf,
        evaluations: float = math.inf,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._opened, self._stacks, self._log, self._say = opened, stacks, log, say
        self._backend = Keeping(backend)
        self._builds = Builds(opened, cache, menu)
        self._gates = Gates(opened, self._builds, self._backend, stacks, log)
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
            what = [wire.shard, {name: said(one) for name, one in self._builds.menu.items()}]
            if (known := self._log.get("units", what)) is None:
                self._say(f"building {wire.shard} ({i + 1} of {len(self._opened.wiring)})")
                known = {"units": [to_data(unit) for unit in self._found(wire.shard)]}
                self._log.put("units", what, known)
            self._units[wire.shard] = tuple(map(from_data, known["units"]))
        return tuple(unit for units in self._units.values() for unit in units)

    def _found(self, id: str) -> tuple[Unit, ...]:
        """A shard's units; settings that the placement gate refuses are no options."""
        shard, built = self._builds.shards[id], {}
        for name in self._builds.menu:
            artifact = self._builds.all_with(id, name)
            if self._gates.placed(shard, artifact).status == "passed":
                program = read_model(artifact.path)
                built[name] = compression.measure(artifact, program, shard.reference)
        if not built:
            raise BuildError(
                f"{shard.qualified}: no setting of the menu passes the placement gate; choose "
                "others."
            )
        return units_of(id, built, shard.requested.keep)

    def losses(self) -> dict[Unit, float]:
        """KL per squared error of every unit, measured alone in an otherwise exact stack.

        Once half of the time is up, what is left gets the mean of the same weights elsewhere, or
        of all; nothing if none was measured.
        """
        units = [unit for units in self._units.values() for unit in units]
        found: dict[Unit, float] = {}
        exact: list[Alone] = []
        for i, unit in enumerate(units):
            pivot = unit.options[max(len(unit.options) // 2 - 1, 0)]
            what = [unit.shard, unit.glob, pivot.setting]
            known = self._log.get("alone", what)
            if known is None and time.monotonic() < self._half:
                self._say(f"sensitivity of {unit} ({i + 1} of {len(units)})")
                alone = exact[0] if exact else self._exact()
                exact = [alone]
                with self._builds.only(unit, pivot.setting) as artifact:
                    kl = alone.kl(self._step(unit.shard, artifact))
                known = {"kl": kl, "sse": pivot.sse, "bytes": pivot.size}
                self._log.put("alone", what, known)
            if known is not None:
                kl = _BROKEN if known["kl"] is None else max(known["kl"], 0.0)
                found[unit] = kl / pivot.sse if pivot.sse else 0.0
        self._backend.forget()
        return filled(units, found)

    def compression(self, choice: Choice) -> dict[str, Settings]:
        """What the manifest has to say of every shard."""
        return self._builds.asked(self._units, choice)

    def trouble(self, shard: str, choice: Choice) -> Trouble | None:
        """The first gate that a shard as chosen fails; None where it passes all."""
        found = self._gates.shard(shard, self.compression(choice)[shard])
        if found["passed"]:
            return None
        gate, blame = found["gate"], {}
        if gate == "fidelity":
            blame = {unit: self._blame(unit, choice[unit]) for unit in self._units[shard]}
        return Trouble(gate, found["reasons"][0], blame)

    def candidate(self, name: str, choice: Choice) -> Candidate:
        """All gates of a whole model.

        Where the stack has failed, shards are not measured that were not before.
        """
        self._say(f"measuring {name}")
        asked = self.compression(choice)
        stack = self._gates.stack(asked)
        size = sum(self._builds.build(id, one).size for id, one in asked.items())
        wanted = [id for id in asked if stack["passed"] or self._gates.known(id, asked[id])]
        shards = [self._gates.shard(id, asked[id]) for id in wanted]
        reasons = [*stack["reasons"], *(r for found in shards for r in found["reasons"])]
        passed = stack["passed"] and all(found["passed"] for found in shards)
        facts = {k: _or_nan(v) for k, v in stack["facts"].items()}
        facts["cosine"] = lowest([shard["cosine"] for shard in shards])
        summary = {"name": name, "bytes": size, "passed": passed, "reasons": reasons}
        self._log.put("candidate", {str(u): s for u, s in choice.items()}, summary)
        kl = facts.get("kl.mean", math.nan)
        return Candidate(name, choice, size, kl, passed, tuple(reasons), facts)

    def _blame(self, unit: Unit, setting: str) -> float:
        """1 - the lowest cosine of the shard with only this unit compressed."""
        what = [unit.shard, unit.glob, setting]
        if (known := self._log.get("blame", what)) is None:
            with self._builds.only(unit, setting) as artifact:
                known = {"cosine": self._gates.cosine(unit.shard, artifact)}
            self._log.put("blame", what, known)
        return 1 - float(known["cosine"])

    def _exact(self) -> Alone:
        plain = [(shard, self._builds.plain(id)) for id, shard in self._builds.shards.items()]
        stack = self._stacks(plain, self._backend)
        return Alone(stack.chain, stack.golden)

    def _step(self, shard: str, artifact: Artifact) -> ChainStep:
        """A step of a chain that is exact otherwise."""
        by_id = {id: self._builds.plain(id) for id in self._builds.shards} | {shard: artifact}
        mixed = [(one, by_id[id]) for id, one in self._builds.shards.items()]
        steps = self._stacks(mixed, self._backend).chain.steps
        self._backend.forget(artifact.path)
        return next(step for step in steps if step.shard == shard)


def filled(units: Sequence[Unit], found: Mapping[Unit, float]) -> dict[Unit, float]:
    """Losses of all units: as measured, else the mean of those of the same name, else of all."""
    if not found:
        return {}
    named: dict[str, list[float]] = {}
    for unit, loss in found.items():
        named.setdefault(unit.glob, []).append(loss)
    rest = list(found.values())
    return {unit: found.get(unit, fmean(named.get(unit.glob, rest))) for unit in units}


def lowest(cosines: Sequence[float | None]) -> float:
    """NaN if one of them is, which Python's `min` would hide, or if there are none."""
    return float(np.min(list(map(_or_nan, cosines)))) if cosines else math.nan


def _or_nan(value: Any) -> float:
    """A number of the log, which has no NaN."""
    return math.nan if value is None else float(value)
