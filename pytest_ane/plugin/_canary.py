"""Canaries: shards that must pass before any other shard of their model is built.

Whoever is about to build another shard asks what their gates say, or the gates themselves, under a
lock: in every worker of xdist. Gates of a project's own count once their tests have run.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_ane.gates.base import GateTest
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import nothing
from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.errors import AneError, NotRunError, UnprovenError
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.plugin.outcome import enforced
from pytest_ane.plugin.recording import MeasurementSource
from pytest_ane.report.terminal import brief

KEY = pytest.StashKey["Canaries"]()


def of(config: pytest.Config) -> Canaries:
    return config.stash[KEY]


def watch(config: pytest.Config, space: Workspace) -> None:
    """Let no shard be built before the canaries of its model have passed."""
    config.stash[KEY] = canaries = Canaries(space)
    space.before_build = canaries.require


class Canaries:
    """What is known of canaries; a complaint ends `canary L01 ...`, and is empty once passed."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._known: dict[GateTest, str] = {}

    def of(self, model: str) -> tuple[Shard, ...]:
        """The canaries that are selected, if other shards of the model are selected too."""
        chosen = [shard for shard in self._space.shards if shard.model == model]
        named = self._space.manifest.model_of(model).canary
        canaries = tuple(shard for shard in chosen if shard.id in named)
        return canaries if len(canaries) < len(chosen) else ()

    def has(self, shard: Shard) -> bool:
        """Whether others wait for this shard."""
        return any(canary.id == shard.id for canary in self.of(shard.model))

    def require(self, shard: Shard) -> None:
        """Raise `NotRunError` unless the canaries of a shard, which is none itself, have passed."""
        if self.has(shard):
            return
        for canary in self.of(shard.model):
            if complaint := self._complaint(canary):
                raise NotRunError(f"not run: canary {canary.id} {complaint}")

    def note(self, asked: GateTest, complaint: str) -> None:
        """Remember what a gate said of a canary, for all processes of the run."""
        # Of a gate with several tests, one that failed decides.
        complaint = self._known.get(asked) or complaint
        self._known[asked] = complaint
        name = _name(asked.subject, f"{asked.gate}+{asked.arithmetic}")
        self._space.run.write(name, [*asked, complaint])

    def _complaint(self, canary: Shard) -> str:
        tests = [
            gate.test(subject) for gate in GATES.values()
            if gate.scope == "shard" and gate.marker == "gate" and gate.asks(canary)
            for subject in self._space.subjects(gate, canary)
        ]  # fmt: skip
        known = self._noted(canary)
        if all(asked in known for asked in tests) or any(known.values()):
            return _first(known)
        # Others may be asking at this moment: then this waits, and reads their answers.
        with (
            self._space.progress.showing(f"waiting for canary {canary.qualified}"),
            self._space.run.lock(_name(canary.qualified)),
        ):
            known = self._noted(canary)
            for asked in tests:
                if asked not in known and not any(known.values()):
                    known[asked] = self._ask(asked, canary)
                    self.note(asked, known[asked])
        return _first(known)

    def _noted(self, canary: Shard) -> dict[GateTest, str]:
        for *asked, complaint in self._space.run.read(_name(canary.qualified)):
            self._known[GateTest(*asked)] = complaint
        known = self._known.items()
        return {asked: says for asked, says in known if asked.subject == canary.qualified}

    def _ask(self, asked: GateTest, canary: Shard) -> str:
        gate = GATES[asked.gate]
        if gate.by_arithmetic:
            canary = canary.in_arithmetic((asked.arithmetic,))
        source = MeasurementSource(self._space, canary)
        try:
            verdict = gate.judge(source.of(gate.name), gate.policy(canary.policy), canary)
        except UnprovenError as error:
            verdict = nothing(gate.name, canary.qualified, str(error))
        except AneError as error:
            return complaint_of(gate.name, "error", brief(str(error)))
        # Whatever else went wrong: the canary has not passed, and the others must not be built.
        except Exception as error:
            return complaint_of(gate.name, "error", repr(error))
        verdict = enforced(verdict, self._space, recorded=source.record is not None)
        allowed = verdict.status == "unproven" and self._space.allows_unproven(verdict.subject)
        passed = allowed or verdict.status == "passed"
        return "" if passed else complaint_of(verdict.gate, verdict.status)


def noted(report: pytest.TestReport, gate: str) -> str | None:
    """The complaint that a test's report makes; None where it decides nothing yet."""
    if report.failed:
        facts = dict(report.user_properties)
        why = str(facts.get("ane.summary", ""))
        return complaint_of(gate, str(facts.get("ane.status", "failed")), why)
    return "" if report.when == "call" and report.passed else None


def complaint_of(gate: str, status: str, why: str = "") -> str:
    """`failed placement`, `left placement unproven`, `has no verdict on placement: ...`."""
    if status in ("error", "not run"):
        return f"has no verdict on {gate}: {why}"
    return f"left {gate} unproven" if status == "unproven" else f"failed {gate}"


def _first(complaints: Mapping[GateTest, str]) -> str:
    return next(filter(None, complaints.values()), "")


def _name(subject: str, gate: str = "") -> str:
    return f"canary-{subject.replace(':', '+')}+{gate}"
