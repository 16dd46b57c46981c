"""Recorded measurements judged afresh: today's policy, whatever was thought of them then."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane import behaviour, build, fidelity
from pytest_ane.behaviour import Behaviour
from pytest_ane.build import CompressionMeasurement
from pytest_ane.evidence.statement import Statement
from pytest_ane.fidelity import Fidelity
from pytest_ane.manifest import Model, Shard
from pytest_ane.placement import plans
from pytest_ane.placement.plans import Plan
from pytest_ane.verdict import Verdict


def judge(statement: Statement, subject: Shard | Model) -> Verdict:
    """The verdict on a statement of this shard, or of this model; it names where it is from."""
    if says := lack(statement, subject):
        verdict = Verdict(statement.gate, statement.subject, "unproven", says, reasons=(says,))
    else:
        verdict = _judged(statement, subject)
    return of_record(verdict, statement)


def of_record(verdict: Verdict, statement: Statement) -> Verdict:
    """A verdict on what a statement holds, with where and when that was recorded."""
    where = origin(statement)
    return replace(
        verdict,
        summary=f"{verdict.summary} · {where}",
        facts=verdict.facts | {"evidence": where},
        provenance=dict(verdict.provenance) | dict(statement.environment),
    )


def origin(statement: Statement) -> str:
    """`recorded 2026-11-21, Apple M4 Max, macOS 26.1, CPU_AND_NE`."""
    known = (statement.environment.get(key) for key in ("chip", "os", "compute_units"))
    return ", ".join((f"recorded {statement.recorded:%Y-%m-%d}", *filter(None, known)))


def lack(statement: Statement, subject: Shard | Model) -> str:
    """What a measurement leaves out of what was asked, which the judges do not know."""
    match statement.measurement, subject:
        case Fidelity(compared=False), Shard(reference=reference) if reference != "none":
            return "The evidence compares with no reference; record it again."
        case Behaviour(prompts=found), Model(prompts=asked):
            lost = {prompt.name for prompt in asked} - {prompt.name for prompt in found}
            if lost:
                return f"The evidence leaves out {', '.join(sorted(lost))}; record it again."
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
