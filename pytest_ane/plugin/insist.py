"""What a policy insists on, whatever gate gives the verdict: one's own may not ask for evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ane.core.verdict import Verdict
from pytest_ane.evidence.verify import WITH_ANE
from pytest_ane.manifest import Gate, Policy
from pytest_ane.manifest.policy import GATES
from pytest_ane.report.text import brief

if TYPE_CHECKING:
    from pytest_ane.plugin.workspace import Workspace


def insisted(verdict: Verdict, space: Workspace, *, recorded: bool) -> Verdict:
    """The verdict; unproven where it passes without the device that the policy asks for.

    Args:
        verdict: what a gate said.
        space: the run's workspace.
        recorded: whether verified evidence was judged.
    """
    gate = next((gate for gate in GATES if gate == verdict.gate), None)
    if verdict.status != "passed" or gate is None or recorded:
        return verdict
    policy = space.policy_of(verdict.subject)
    if not policy.requires_evidence(gate) or not (says := _lack(gate, verdict, policy, space)):
        return verdict
    wanted = "Core ML's plan" if gate == "placement" else "a device"
    sentence = f"policy.{gate}.require asks for {wanted}, and {says}."
    return replace(verdict, status="unproven", summary=brief(sentence), reasons=(sentence,))


def _lack(gate: Gate, verdict: Verdict, policy: Policy, space: Workspace) -> str:
    asks = f"let it judge what ane_evidence.of({gate!r}, ...) gives"
    if not space.backend.on_device:
        return f"this gate measured on the backend {space.backend.name}; {asks}"
    if gate == "placement" and verdict.facts.get("instrument") != "plan":
        return f"this gate judged a forecast; {asks}"
    if space.units not in (policy.evidence_for(gate).compute_units or WITH_ANE):
        return f"--ane-compute-units={space.units} is none that the policy takes"
    return ""
