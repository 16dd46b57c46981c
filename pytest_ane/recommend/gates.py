"""The gates, asked of candidates: measured and judged by the gates' own functions, and logged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_ane.build import Artifact
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates import behaviour, compression, fidelity, placement
from pytest_ane.gates.behaviour.judge import where
from pytest_ane.manifest import BehaviourPolicy, Settings, Shard
from pytest_ane.mil import read_model
from pytest_ane.project.models import OpenModel
from pytest_ane.project.stack import Stack
from pytest_ane.recommend.builds import Builds, LoadedBackend
from pytest_ane.recommend.log import Log

GATES_VERSION = 1
"""Raised when a gate measures or judges otherwise: what a log calls passed is asked again."""


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
        """Placement, compression and fidelity of a shard, up to the first that fails."""
        if (known := self.known(id, asked)) is None:
            shard, artifact = self._builds.shards[id], self._builds.build(id, asked)
            last = list(self._verdicts(shard, artifact, asked))[-1]
            known = {
                "bytes": artifact.size,
                "passed": last.status == "passed",
                "gate": last.gate,
                "reasons": [f"{shard.qualified}: {reason}" for reason in last.reasons],
                "cosine": last.facts.get("cosine.min"),
            }
            self._log.put("shard", [id, asked.model_dump(mode="json")], known)
        return known

    def stack(self, asked: Mapping[str, Settings]) -> dict[str, Any]:
        """Behaviour of the whole model; without greedy text where it fails without."""
        what = {id: one.model_dump(mode="json") for id, one in asked.items()}
        if (known := self._log.get("stack", what)) is not None:
            return known
        self.stacks_run += 1
        policy = self._opened.model.policy.behaviour
        artifacts = [
            (s, self._builds.build(id, asked[id])) for id, s in self._builds.shards.items()
        ]
        self._backend.forget(keep={artifact.path for _, artifact in artifacts})
        stack = Stack(self._opened, artifacts, self._backend)
        # Greedy text costs most of the time.
        short = [replace(g, greedy=(), leads=(), text="") for g in stack.golden]
        verdict = self._judged(stack, short, policy.model_copy(update={"min_greedy": 0}))
        if verdict.status == "passed":
            verdict = self._judged(stack, stack.golden, policy)
        known = {
            "passed": verdict.status == "passed",
            "reasons": list(verdict.reasons),
            "summary": verdict.summary,
            "facts": {k: v for k, v in verdict.facts.items() if not isinstance(v, str)},
        }
        self._log.put("stack", what, known)
        return known

    def cosine(self, shard: str, artifact: Artifact) -> float:
        """The lowest cosine of a shard's probes; -1 where there is none."""
        found = self._fidelity(self._builds.shards[shard], artifact).facts.get("cosine.min", -1.0)
        return float(found) if not math.isnan(float(found)) else -1.0

    def placed(self, shard: Shard, artifact: Artifact) -> Verdict:
        """The placement gate of a shard."""
        program = read_model(artifact.path)
        found = placement.measure(self._backend, artifact.path, program, size_bytes=artifact.size)
        return placement.judge(found, subject=shard.qualified, os=shard.policy.placement.os)

    def _verdicts(self, shard: Shard, artifact: Artifact, asked: Settings) -> Iterator[Verdict]:
        yield (placed := self.placed(shard, artifact))
        if placed.status != "passed":
            return
        measured = compression.measure(artifact, read_model(artifact.path), shard.reference)
        policy = shard.policy.compression
        yield (
            done := compression.judge(measured, asked=asked, policy=policy, subject=shard.qualified)
        )
        if done.status == "passed":
            yield self._fidelity(shard, artifact)

    def _fidelity(self, shard: Shard, artifact: Artifact) -> Verdict:
        runner, cases = self._backend.fresh(artifact.path), self._opened.cases(shard)
        found = fidelity.measure(runner, cases, compared=True, provenance={})
        return fidelity.judge(found, shard.policy.fidelity, shard.qualified)

    def _judged(
        self, stack: Stack, golden: Sequence[GoldenPrompt], policy: BehaviourPolicy
    ) -> Verdict:
        found = behaviour.measure(stack.chain, golden, stack.states, stack.decode, stack.provenance)
        verdict = behaviour.judge(found, policy, self._opened.model.name)
        # A line has room for one reason: which policy is broken says more than at which position.
        seen = set(where(found, policy))
        return replace(verdict, reasons=tuple(r for r in verdict.reasons if r not in seen))
