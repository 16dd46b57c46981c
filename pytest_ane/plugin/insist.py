"""What a policy insists on, whatever gate gives the verdict: one's own may not ask for evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ane.evidence.verify import WITH_ANE
from pytest_ane.manifest.policy import GATES
from pytest_ane.report.text import brief
from pytest_ane.verdict import Verdict

if TYPE_CHECKING:
    from pytest_ane.plugin.workspace import Workspace


def insisted(verdict: Verdict, space: Workspace, *, recorded: bool) -> Verdict:
    """The verdict; unproven where it passes without the device that the policy asks for.

    Args:
        verdict: what a gate said.
        space: the run's workspace.
        recorded: whether verified evidence was judged.
    """
    if verdict.status != "passed" or verdict.gate not in GATES or recorded:
        return verdict
    if not space.policy_of(verdict.subject).requires_evidence(verdict.gate):
        return verdict
    if not (says := _lack(verdict, space)):
        return verdict
    wanted = "Core ML's plan" if verdict.gate == "placement" else "a device"
    sentence = f"policy.{verdict.gate}.require asks for {wanted}, and {says}."
    return replace(verdict, status="unproven", summary=brief(sentence), reasons=(sentence,))


def _lack(verdict: Verdict, space: Workspace) -> str:
    asks = f"let it judge what evidence.of({verdict.gate!r}, ...) gives"
    if not space.backend.on_device:
        return f"this gate measured on the backend {space.backend.name}; {asks}"
    if verdict.gate == "placement" and verdict.facts.get("instrument") != "plan":
        return f"this gate judged a forecast; {asks}"
    if space.units not in WITH_ANE:
        return f"--ane-compute-units={space.units} leaves the ANE out; leave it away"
    return ""
