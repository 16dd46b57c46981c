"""Recorded measurements judged afresh: today's policy, whatever was thought of them then."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from pytest_ane import behaviour, build, fidelity
from pytest_ane.behaviour import Behaviour
from pytest_ane.build import CompressionMeasurement
from pytest_ane.evidence.statement import Statement
from pytest_ane.fidelity import Fidelity
from pytest_ane.manifest import Model, Shard
from pytest_ane.mil import count_operations
from pytest_ane.placement import plans
from pytest_ane.placement.plans import Plan
from pytest_ane.verdict import Verdict


def judge(statement: Statement, subject: Shard | Model, artifact: Path | None = None) -> Verdict:
    """The verdict on a statement of this shard, or of this model; it names where it is from.

    Args:
        statement: what was recorded.
        subject: the shard, or for behaviour the model, as the manifest has it.
        artifact: the shard's package, against which a plan is checked.
    """
    if says := lack(statement, subject, artifact):
        verdict = Verdict(statement.gate, statement.subject, "unproven", says, reasons=(says,))
    else:
        verdict = _judged(statement, subject)
    return of_record(verdict, statement)


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


def lack(statement: Statement, subject: Shard | Model, artifact: Path | None = None) -> str:
    """What a measurement leaves out of what was asked, which the judges do not know."""
    match statement.measurement, subject:
        case Plan() as plan, Shard() if artifact is not None:
            return _left_out(plan, artifact)
        case Fidelity(compared=False), Shard(reference=reference) if reference != "none":
            return "The evidence compares with no reference; record it again."
        case Behaviour(prompts=found), Model(prompts=asked):
            lost = {prompt.name for prompt in asked} - {prompt.name for prompt in found}
            if lost:
                return f"The evidence leaves out {', '.join(sorted(lost))}; record it again."
    return ""


def _left_out(plan: Plan, artifact: Path) -> str:
    """A plan is joined with its program when it is recorded, so each operation is in it once."""
    planned = Counter(operation.op or "" for _, operation in plan.walk())
    there = count_operations(artifact)
    if plan.tallies or planned != there:
        kind = next((kind for kind in there | planned if there[kind] != planned[kind]), "operation")
        return (
            f"The evidence's plan is not of the whole program: it has {planned[kind]} {kind}, the "
            f"program {there[kind]}; record it again."
        )
    return ""


def _judged(statement: Statement, subject: Shard | Model) -> Verdict:
    name, policy = statement.subject, subject.policy
    match statement.measurement, subject:
        case Plan() as plan, Shard():
            return plans.judge(plan, subject=name)
        case CompressionMeasurement() as found, Shard():
            return build.judge(
                found, asked=subject.compression, policy=policy.compression, subject=name
            )
        case Fidelity() as found, Shard():
            return fidelity.judge(found, policy.fidelity, name)
        case Behaviour() as found, Model():
            return behaviour.judge(found, policy.behaviour, name)
    raise TypeError(f"{type(statement.measurement).__name__} is no measurement of {name}")
