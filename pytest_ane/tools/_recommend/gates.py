"""Gates asked of candidates: measured and judged by the gates of the registry, and logged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pytest_ane.backends import Backend
from pytest_ane.gates import GATES
from pytest_ane.gates.behaviour import BEHAVIOUR, measure
from pytest_ane.gates.fidelity import FIDELITY
from pytest_ane.gates.verdict import Verdict
from pytest_ane.make import Artifact
from pytest_ane.manifest import Settings, Shard
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.probes.cases import Case
from pytest_ane.probes.golden_prompts import GoldenPrompt
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.tools._recommend.builds import Builds, LoadedBackend
from pytest_ane.tools._recommend.log import Log

GATES_VERSION = 3
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
            last = list(self._verdicts(subject, artifact))[-1]
            return {
                "bytes": artifact.size,
                "passed": last.status == "passed",
                "gate": last.gate,
                "reasons": [f"{shard.qualified}: {f.reason}." for f in last.reasons],
                "cosine": last.values.get("cosine.min"),
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
        stack = Stack(self._opened, artifacts, self._backend)
        # Greedy text costs most of the time.
        short = [replace(g, greedy=(), leads=(), text="") for g in stack.golden]
        verdict = self._judged(stack, short, policy.model_copy(update={"min_greedy": 0}))
        if verdict.status == "passed":
            verdict = self._judged(stack, stack.golden, policy)
        return {
            "passed": verdict.status == "passed",
            "reasons": [f"{finding.reason}." for finding in verdict.reasons],
            "facts": {k: v for k, v in verdict.values.items() if not isinstance(v, str)},
        }

    def cosine(self, shard: str, artifact: Artifact) -> float:
        """The lowest cosine of a shard's probes; -1 where there is none."""
        candidate = self._candidate(self._builds.shards[shard], artifact)
        figures = FIDELITY.figures(FIDELITY.measure(candidate))
        cosine = next((float(f.value) for f in figures if f.name == "cosine.min"), math.nan)
        return -1.0 if math.isnan(cosine) else cosine

    def first(self, shard: Shard, artifact: Artifact) -> Verdict:
        """Verdict of the first gate of shards: the cheapest, which runs nothing."""
        return next(self._verdicts(shard, artifact))

    def _verdicts(self, subject: Shard, artifact: Artifact) -> Iterator[Verdict]:
        candidate = self._candidate(subject, artifact)
        for gate in GATES.values():
            if gate.scope == "shard" and gate.marker == "gate":
                measurement = gate.measure(candidate)
                yield (verdict := gate.judge(measurement, gate.policy(subject.policy), subject))
                if verdict.status != "passed":
                    return

    def _candidate(self, shard: Shard, artifact: Artifact) -> CandidateShard:
        return CandidateShard(shard, artifact, self._backend, lambda: self._opened.cases(shard))

    def _judged(
        self, stack: Stack, golden: Sequence[GoldenPrompt], policy: BehaviourPolicy
    ) -> Verdict:
        measurement = measure(
            stack.chain,
            golden,
            stack.states,
            stack.decode,
            stack.provenance,
            stack.simulated,
            lambda: stack.rules,
        )
        return BEHAVIOUR.judge(measurement, policy, self._opened.model)
