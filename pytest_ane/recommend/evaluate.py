"""Measuring candidates: built as any build, measured and judged by the gates' own functions."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from pytest_ane import behaviour, build, fidelity, placement
from pytest_ane.backends import Backend
from pytest_ane.behaviour import Chain, Golden
from pytest_ane.behaviour.chain import Step
from pytest_ane.build import Artifact, Cache
from pytest_ane.errors import BuildError
from pytest_ane.families import LanguageModel, Wire
from pytest_ane.fidelity import Case
from pytest_ane.manifest import Model, Settings, Shard, Uncompressed
from pytest_ane.mil import read_model
from pytest_ane.recommend.alone import Alone
from pytest_ane.recommend.keeping import Keeping
from pytest_ane.recommend.log import Log
from pytest_ane.recommend.menu import Menu
from pytest_ane.recommend.search import Candidate, Trouble
from pytest_ane.recommend.units import Choice, Unit, compression, from_data, said, to_data, units_of
from pytest_ane.sources import FloatArray
from pytest_ane.verdict import Verdict


class Opened(Protocol):
    """What is needed of an opened model (`plugin.models.OpenModel`)."""

    model: Model

    @property
    def identity(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def wiring(self) -> tuple[Wire, ...]: ...  # noqa: D102
    @property
    def language_model(self) -> LanguageModel: ...  # noqa: D102
    def cases(self, shard: Shard) -> list[Case]: ...  # noqa: D102


class Stacked(Protocol):
    """What is needed of a stack (`plugin.stack.Stack`)."""

    @property
    def chain(self) -> Chain: ...  # noqa: D102
    @property
    def golden(self) -> Sequence[Golden]: ...  # noqa: D102
    @property
    def states(self) -> Callable[[str, str], tuple[FloatArray, FloatArray]]: ...  # noqa: D102
    @property
    def decode(self) -> Callable[[Sequence[int]], str]: ...  # noqa: D102
    @property
    def provenance(self) -> Mapping[str, Any]: ...  # noqa: D102


Stacks = Callable[[Sequence[tuple[Shard, Artifact]], Backend], Stacked]


class Measuring:
    """The bench of a search over one model.

    Args:
        opened: the model.
        cache: where shards are built; what a killed search built is found there again.
        backend: runs them.
        stacks: chains artifacts.
        menu: the settings.
        log: keeps every number.
        minutes: how long to go on measuring; what has begun is finished.
        evaluations: whole stacks to measure at most.
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
        self._opened, self._cache, self._backend = opened, cache, Keeping(backend)
        self._stacks, self._menu, self._log, self._say = stacks, menu, log, say
        self._until = time.monotonic() + minutes * 60
        self._half = time.monotonic() + minutes * 30
        self._left = evaluations
        self._shards = {shard.id: shard for shard in opened.model.shards}
        self._units: dict[str, tuple[Unit, ...]] = {}
        self._uncompressed: dict[str, Artifact] = {}
        self._exact: Alone | None = None

    @property
    def spent(self) -> bool:
        """Whether time or evaluations are used up."""
        return time.monotonic() > self._until or self._left <= 0

    # --- what there is to choose from

    def units(self) -> tuple[Unit, ...]:
        """All units, in running order; builds every shard with every setting."""
        for i, wire in enumerate(self._opened.wiring):
            shard = self._shards[wire.shard]
            what = [shard.id, {name: said(setting) for name, setting in self._menu.items()}]
            if (known := self._log.get("units", what)) is None:
                self._say(f"building {shard.id} ({i + 1} of {len(self._shards)})")
                known = {"units": [to_data(unit) for unit in self._found(shard)]}
                self._log.put("units", what, known)
            self._units[shard.id] = tuple(map(from_data, known["units"]))
        return tuple(unit for units in self._units.values() for unit in units)

    def _found(self, shard: Shard) -> tuple[Unit, ...]:
        """A shard's units; settings that the placement gate refuses are no options."""
        built = {}
        for name, setting in self._menu.items():
            artifact = self._build(shard, self._with_keep(shard, setting))
            if self._placed(shard, artifact).status == "passed":
                program = read_model(artifact.path)
                built[name] = build.measure(artifact, program, shard.reference)
        if not built:
            raise BuildError(
                f"{shard.qualified}: no setting of the menu passes the placement gate; choose "
                "others."
            )
        return units_of(shard.id, built, shard.asked.keep)

    def losses(self) -> dict[Unit, float]:
        """KL per squared error of every unit, measured alone in an otherwise exact stack.

        Once half of the time is up, what is left gets the mean of what was measured.
        """
        units = [unit for units in self._units.values() for unit in units]
        found: dict[Unit, float] = {}
        for i, unit in enumerate(units):
            pivot = unit.options[max(len(unit.options) // 2 - 1, 0)]
            what = [unit.shard, unit.glob, pivot.setting]
            known = self._log.get("alone", what)
            if known is None and time.monotonic() < self._half:
                self._say(f"sensitivity of {unit} ({i + 1} of {len(units)})")
                with self._only(unit, pivot.setting) as artifact:
                    kl = self._alone.kl(self._step(unit.shard, artifact))
                known = {"kl": kl, "sse": pivot.sse, "bytes": pivot.size}
                self._log.put("alone", what, known)
            if known is not None:
                found[unit] = max(known["kl"], 0.0) / pivot.sse if pivot.sse else 0.0
        self._exact = None
        self._backend.forget()
        if not found:
            raise BuildError(
                f"{self._opened.model.name}: time was up before any sensitivity was measured; what "
                "is built is kept, so run again, or give more --minutes."
            )
        mean = sum(found.values()) / len(found)
        return {unit: found.get(unit, mean) for unit in units}

    # --- gates

    def trouble(self, shard: str, choice: Choice) -> Trouble | None:
        """The first gate that a shard as chosen fails; None where it passes all."""
        found = self._gates(shard, choice)
        if found["passed"]:
            return None
        gate, blame = found["gate"], {}
        if gate == "fidelity":
            blame = {u: self._blame(u, choice[u]) for u in choice if u.shard == shard}
        return Trouble(gate, found["reasons"][0], blame)

    def candidate(self, name: str, choice: Choice) -> Candidate:
        """All gates of a whole model.

        Where the stack has failed, shards are not measured that were not before.
        """
        self._say(f"measuring {name}")
        asked = self.compression(choice)
        stack = self._behaviour(asked)
        size = sum(self._build(self._shards[id], one).size for id, one in asked.items())
        wanted = [id for id in asked if stack["passed"] or self._known(id, asked[id])]
        gates = [self._gates(shard, choice) for shard in wanted]
        reasons = [*stack["reasons"], *(r for found in gates for r in found["reasons"])]
        facts = {"cosine": min((found["cosine"] for found in gates), default=math.nan)}
        passed = stack["passed"] and all(found["passed"] for found in gates)
        kl = stack["facts"].get("kl.mean", math.nan)
        summary = {"name": name, "bytes": size, "passed": passed, "reasons": reasons}
        self._log.put("candidate", {str(u): s for u, s in choice.items()}, summary)
        return Candidate(name, choice, size, kl, passed, tuple(reasons), facts | stack["facts"])

    def _gates(self, shard_id: str, choice: Choice) -> dict[str, Any]:
        """Placement, compression and fidelity of a shard as chosen, up to the first that fails."""
        shard, asked = self._shards[shard_id], self._compression(shard_id, choice)
        if (known := self._known(shard_id, asked)) is None:
            artifact = self._build(shard, asked)
            verdicts = list(self._verdicts(shard, artifact, asked))
            last = verdicts[-1]
            known = {
                "bytes": artifact.size,
                "passed": last.status == "passed",
                "gate": last.gate,
                "reasons": [f"{shard.qualified}: {reason}" for reason in last.reasons],
                "cosine": last.facts.get("cosine.min", math.nan),
            }
            self._log.put("shard", [shard_id, asked.model_dump(mode="json")], known)
        return known

    def _known(self, shard_id: str, asked: Settings) -> dict[str, Any] | None:
        return self._log.get("shard", [shard_id, asked.model_dump(mode="json")])

    def _verdicts(self, shard: Shard, artifact: Artifact, asked: Settings) -> Iterator[Verdict]:
        yield (placed := self._placed(shard, artifact))
        if placed.status != "passed":
            return
        measured = build.measure(artifact, read_model(artifact.path), shard.reference)
        policy = shard.policy.compression
        yield (done := build.judge(measured, asked=asked, policy=policy, subject=shard.qualified))
        if done.status == "passed":
            yield self._fidelity(shard, artifact)

    def _placed(self, shard: Shard, artifact: Artifact) -> Verdict:
        program = read_model(artifact.path)
        found = placement.measure(self._backend, artifact.path, program, size_bytes=artifact.size)
        return placement.judge(found, subject=shard.qualified, os=shard.policy.placement.os)

    def _fidelity(self, shard: Shard, artifact: Artifact) -> Verdict:
        runner, cases = self._backend.fresh(artifact.path), self._opened.cases(shard)
        found = fidelity.measure(runner, cases, compared=True, provenance={})
        return fidelity.judge(found, shard.policy.fidelity, shard.qualified)

    def _blame(self, unit: Unit, setting: str) -> float:
        """1 - the lowest cosine of the shard with only this unit compressed."""
        what = [unit.shard, unit.glob, setting]
        if (known := self._log.get("blame", what)) is None:
            with self._only(unit, setting) as artifact:
                verdict = self._fidelity(self._shards[unit.shard], artifact)
            known = {"cosine": verdict.facts.get("cosine.min", -1.0)}
            self._log.put("blame", what, known)
        return 1 - float(known["cosine"])

    def _behaviour(self, asked: Mapping[str, Settings]) -> dict[str, Any]:
        what = {id: one.model_dump(mode="json") for id, one in asked.items()}
        if (known := self._log.get("stack", what)) is not None:
            return known
        self._left -= 1
        policy = self._opened.model.policy.behaviour
        artifacts = [(s, self._build(s, asked[s.id])) for s in self._shards.values()]
        self._backend.forget(keep={artifact.path for _, artifact in artifacts})
        stack = self._stacks(artifacts, self._backend)
        # Greedy text costs most of the time; what fails without it needs none.
        short = [replace(g, greedy=(), leads=(), text="") for g in stack.golden]
        verdict = self._judged(stack, short, policy.model_copy(update={"min_greedy": 0}))
        if verdict.status == "passed":
            verdict = self._judged(stack, stack.golden, policy)
        facts = {k: v for k, v in verdict.facts.items() if isinstance(v, (int, float))}
        known = {
            "passed": verdict.status == "passed",
            "reasons": list(verdict.reasons),
            "summary": verdict.summary,
            "facts": facts,
        }
        self._log.put("stack", what, known)
        return known

    def _judged(self, stack: Stacked, golden: Sequence[Golden], policy: Any) -> Verdict:
        found = behaviour.measure(stack.chain, golden, stack.states, stack.decode, stack.provenance)
        return behaviour.judge(found, policy, self._opened.model.name)

    # --- building and loading

    def compression(self, choice: Choice) -> dict[str, Settings]:
        """What the manifest has to say of every shard."""
        return {shard: self._compression(shard, choice) for shard in self._shards}

    def _compression(self, shard: str, choice: Choice) -> Settings:
        units = self._units[shard]
        return compression(units, choice, self._menu, self._shards[shard].asked.keep)

    def _with_keep(self, shard: Shard, setting: Settings) -> Settings:
        keep = list(shard.asked.keep)
        return type(setting).model_validate(said(setting) | {"keep": keep})

    def _build(self, shard: Shard, asked: Settings) -> Artifact:
        wanted = shard.model_copy(update={"compression": asked})
        return build.build_shard(
            wanted,
            self._cache,
            identity=self._opened.identity,
            model=lambda: self._opened.language_model,
            source=self._plain(shard),
        )

    def _plain(self, shard: Shard) -> Artifact:
        if shard.id not in self._uncompressed:
            self._uncompressed[shard.id] = build.uncompressed(
                shard,
                self._cache,
                identity=self._opened.identity,
                model=lambda: self._opened.language_model,
            )
        return self._uncompressed[shard.id]

    @contextmanager
    def _only(self, unit: Unit, setting: str) -> Iterator[Artifact]:
        """The shard with one unit compressed and everything else exact; gone afterwards."""
        shard = self._shards[unit.shard]
        override = {"weights": unit.glob} | said(self._menu[setting])
        asked = {"method": "none", "overrides": [override], "keep": list(shard.asked.keep)}
        wanted = shard.model_copy(update={"compression": Uncompressed.model_validate(asked)})
        with tempfile.TemporaryDirectory(prefix="pytest-ane-") as folder:
            yield build.compressed(wanted, self._plain(shard), Path(folder))

    @property
    def _alone(self) -> Alone:
        if self._exact is None:
            artifacts = [(shard, self._plain(shard)) for shard in self._shards.values()]
            stack = self._stacks(artifacts, self._backend)
            self._exact = Alone(stack.chain, stack.golden)
        return self._exact

    def _step(self, shard: str, artifact: Artifact) -> Step:
        """A step of a chain that is exact otherwise."""
        mixed = [(s, artifact if s.id == shard else self._plain(s)) for s in self._shards.values()]
        steps = self._stacks(mixed, self._backend).chain.steps
        self._backend.forget(artifact.path)
        return next(step for step in steps if step.shard == shard)
