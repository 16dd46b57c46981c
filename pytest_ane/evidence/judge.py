"""Recorded measurements judged afresh: today's policy, whatever was thought of them then."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.core.verdict import Verdict
from pytest_ane.evidence.statement import Statement
from pytest_ane.gates import behaviour, compression, fidelity
from pytest_ane.gates.behaviour import Behaviour
from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.fidelity import Fidelity
from pytest_ane.gates.placement import plans
from pytest_ane.gates.placement.plans import Plan
from pytest_ane.manifest import Model, Shard


def judge(statement: Statement, subject: Shard | Model) -> Verdict:
    """The verdict on a verified statement of this shard, or of this model; it names its origin."""
    return of_record(_judged(statement, subject), statement)


def of_record(verdict: Verdict, statement: Statement) -> Verdict:
    """A verdict on what a statement holds, with where and when that was recorded.

    What another module than Core ML answered is no evidence of a device, and warned of.
    """
    where, summary, facts = origin(statement), verdict.summary, dict(verdict.facts)
    if replayed(statement) and verdict.status == "passed" and verdict.gate != "compression":
        summary = f"replayed, no device was asked · {summary}"
        facts["warnings"] = int(facts.get("warnings", 0)) + 1
    return replace(
        verdict,
        summary=f"{summary} · {where}",
        facts=facts | {"evidence": where},
        provenance=dict(verdict.provenance) | dict(statement.environment),
    )


def replayed(statement: Statement) -> bool:
    """Whether something else than Core ML itself answered."""
    return "native" in statement.environment


def origin(statement: Statement) -> str:
    """`recorded 2026-11-21, Apple M4 Max, macOS 26.1, CPU_AND_NE`."""
    return ", ".join(filter(None, (f"recorded {statement.recorded:%Y-%m-%d}", machine(statement))))


def machine(statement: Statement) -> str:
    """`Apple M4 Max, macOS 26.1, CPU_AND_NE`, or `replayed Apple M4 Max, ...`."""
    known = (statement.environment.get(key) for key in ("chip", "os", "compute_units"))
    return ("replayed " if replayed(statement) else "") + ", ".join(filter(None, known))


def _judged(statement: Statement, subject: Shard | Model) -> Verdict:
    name, policy = statement.subject, subject.policy
    match statement.measurement, subject:
        case Plan() as plan, Shard():
            return plans.judge(plan, subject=name)
        case CompressionMeasurement() as found, Shard():
            return compression.judge(
                found, asked=subject.compression, policy=policy.compression, subject=name
            )
        case Fidelity() as found, Shard():
            return fidelity.judge(found, policy.fidelity, name)
        case Behaviour() as found, Model():
            return behaviour.judge(found, policy.behaviour, name)
    raise TypeError(f"{type(statement.measurement).__name__} is no measurement of {name}")
