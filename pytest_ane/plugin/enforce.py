"""Enforces policy keys even if a user-written gate ignores them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_ane.backends import CoreMLBackend
from pytest_ane.gates import GATES, Gate
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.manifest import Policy
from pytest_ane.manifest.evidence import WITH_ANE
from pytest_ane.mlprogram.errors import UnprovenError
from pytest_ane.report.figures import figure_text

if TYPE_CHECKING:
    from pytest_ane.plugin.workspace import Workspace


def enforced(verdict: Verdict, space: Workspace, *, recorded: bool) -> Verdict:
    """The verdict; unproven where it passes without the device that the policy requires.

    So it is where Core ML was allowed an ANE that this machine does not have.
    A verdict of a user's own gate is failed where a figure is beyond its limit and no finding is.

    Args:
        verdict: what a gate said.
        space: the run's workspace.
        recorded: whether verified evidence was judged.
    """
    gate = GATES.get(verdict.gate)
    if gate is None and verdict.status == "passed":
        beyond = tuple(
            Finding("failed", figure_text(figure), figure=figure.name)
            for figure in verdict.figures
            if not figure.passes
        )
        return replace(verdict, findings=(*beyond, *verdict.findings))
    if verdict.status != "passed" or gate is None or recorded:
        return verdict
    if gate.by_device and (error := _absent_ane(space)):
        reason, _, remedy = str(error).partition("; ")
        absent = Finding("unproven", reason, remedy=remedy)
        return replace(verdict, findings=(absent, *verdict.findings))
    if not gate.recordable:
        return verdict
    policy = space.policy_of(verdict.subject)
    if not policy.requires_evidence(gate.name):
        return verdict
    if not (lack := _lack(gate, verdict, policy, space)):
        return verdict
    reason = f"policy.{gate.name}.require asks for {gate.requires}, and {lack}"
    return replace(verdict, findings=(Finding("unproven", reason), *verdict.findings))


def _absent_ane(space: Workspace) -> UnprovenError | None:
    """Why what Core ML measures here proves nothing of an ANE that it may use."""
    try:
        if isinstance(space.backend, CoreMLBackend):
            space.backend.require_ane()
    except UnprovenError as error:
        return error
    return None


def _lack(gate: Gate[Any], verdict: Verdict, policy: Policy, space: Workspace) -> str:
    instead = f"let it judge what ane_evidence.of({gate.name!r}) gives"
    if not space.backend.on_device:
        return f"this gate measured on the backend {space.backend.name}; {instead}"
    if "native" in space.backend.provenance():
        return "the answers are replayed, so no device was asked"
    if lack := gate.proves(verdict):
        return f"{lack}; {instead}"
    if space.units not in (policy.evidence_for(gate.name).compute_units or WITH_ANE):
        return f"--ane-compute-units={space.units} is none that the policy takes"
    return ""
