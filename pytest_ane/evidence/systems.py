"""Evidence of every system that a policy names: the gate's verdict is that of the worst."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ane.evidence.judge import judge
from pytest_ane.evidence.statement import Statement
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import STATUSES, Finding, Verdict, nothing
from pytest_ane.mlprogram.errors import UnprovenError


@dataclass(frozen=True)
class Answer:
    """What one system comes to.

    Attributes:
        system: as the policy names it; empty where it names none.
        verdict: on what was recorded there, or is measured now.
        statement: what was recorded, if it counts.
        error: why it does not.
    """

    system: str
    verdict: Verdict
    statement: Statement | None = None
    error: UnprovenError | None = None


def systems_of(gate: str, subject: Subject) -> tuple[str, ...]:
    """The systems of which a gate needs evidence each; one without a name where any will do.

    What does not depend on the device is the same on every system.
    """
    systems = subject.policy.evidence_for(gate).systems if GATES[gate].by_device else None
    return systems or ("",)


def answers(
    gate: str,
    subject: Subject,
    verified: Callable[[str], Statement],
    systems: Iterable[str] | None = None,
) -> list[Answer]:
    """The answers of systems, of all that the policy names unless some are given.

    Args:
        gate: whose evidence is wanted.
        subject: a shard or a model.
        verified: gives a system's evidence if it counts, else raises `UnprovenError`.
        systems: those that are asked.
    """
    found = []
    for system in systems_of(gate, subject) if systems is None else systems:
        try:
            statement = verified(system)
        except UnprovenError as error:
            reason, _, remedy = str(error).partition("; ")
            verdict = nothing(gate, subject.qualified, reason, remedy)
            found.append(Answer(system, verdict, error=error))
        else:
            found.append(Answer(system, judge(statement, subject), statement))
    return found


def worst(found: Sequence[Answer]) -> Answer:
    """The answer that decides: the first that failed, else is unproven, else passed."""
    return min(found, key=lambda answer: STATUSES.index(answer.verdict.status))


def others(found: Sequence[Answer]) -> tuple[Finding, ...]:
    """What the systems came to that do not decide: what keeps each from passing, or a note."""
    decides = worst(found)
    findings: list[Finding] = []
    for answer in found:
        if answer is not decides:
            named = [_named(finding, answer.system) for finding in answer.verdict.reasons]
            findings += named or [Finding("note", f"{answer.system}: passed")]
    return tuple(findings)


def combined(found: Sequence[Answer]) -> Verdict:
    """The verdict of the worst system, with what the others came to."""
    verdict = worst(found).verdict
    return replace(verdict, findings=(*verdict.findings, *others(found)))


def _named(finding: Finding, system: str) -> Finding:
    """A finding of another system than the one whose figures are shown."""
    kind = f"{finding.kind} on {system}" if finding.kind else ""
    return replace(finding, reason=f"{system}: {finding.reason}", kind=kind, figure="")
