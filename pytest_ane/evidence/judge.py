"""Recorded measurements judged afresh: today's policy, whatever was thought of them then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_ane import behaviour, build, fidelity
from pytest_ane.behaviour import Behaviour
from pytest_ane.build import CompressionMeasurement
from pytest_ane.evidence.statement import Statement
from pytest_ane.fidelity import Fidelity
from pytest_ane.manifest import Model, Shard
from pytest_ane.mil.records import Model as Program
from pytest_ane.placement import plans
from pytest_ane.placement.plans import Plan
from pytest_ane.verdict import Verdict


def judge(
    statement: Statement, subject: Shard | Model, program: Callable[[], Program] | None = None
) -> Verdict:
    """The verdict on a verified statement of this shard, or of this model; it names its origin.

    Args:
        statement: what was recorded.
        subject: whose policy is applied.
        program: reads what a plan is of: what it leaves out is without a device. Without it, a
            plan is taken for complete.
    """
    return of_record(_judged(statement, subject, program), statement)


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
    """`recorded 2026-11-21, Apple M4 Max, macOS 26.1, CPU_AND_NE`.

    `replayed` where not Core ML answered but a recording or the executor, which is for tests.
    """
    of = statement.environment.get
    how = "replayed" if of("native") else "recorded"
    known = (of(key) for key in ("chip", "os", "compute_units"))
    return ", ".join((f"{how} {statement.recorded:%Y-%m-%d}", *filter(None, known)))


def _judged(
    statement: Statement, subject: Shard | Model, program: Callable[[], Program] | None
) -> Verdict:
    name, policy = statement.subject, subject.policy
    match statement.measurement, subject:
        case Plan() as plan, Shard():
            return plans.judge(plans.join(plan, program()) if program else plan, subject=name)
        case CompressionMeasurement() as found, Shard():
            return build.judge(
                found, asked=subject.compression, policy=policy.compression, subject=name
            )
        case Fidelity() as found, Shard():
            return fidelity.judge(found, policy.fidelity, name)
        case Behaviour() as found, Model():
            return behaviour.judge(found, policy.behaviour, name)
    raise TypeError(f"{type(statement.measurement).__name__} is no measurement of {name}")
