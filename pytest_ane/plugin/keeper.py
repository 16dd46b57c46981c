"""From a verdict, or an error that came before it, to a test's outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from pytest_ane.build import Artifact
from pytest_ane.core.errors import AneError, NotRunError, UnprovenError
from pytest_ane.core.verdict import Gate, Verdict
from pytest_ane.evidence.judge import of_record
from pytest_ane.manifest import Shard
from pytest_ane.plugin import blame, workspace
from pytest_ane.plugin.collection import gate_of
from pytest_ane.plugin.insist import insisted
from pytest_ane.plugin.recording import RECORDED
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.report.text import brief, failure, reasons


@dataclass(frozen=True)
class GateKeeper:
    """Records verdicts on one test item."""

    item: pytest.Item
    workspace: Workspace

    def __call__(self, verdict: Verdict) -> None:
        """Record the facts as `user_properties`; fail the test unless the verdict allows it."""
        recorded = self.item.stash.get(RECORDED, None)
        verdict = insisted(verdict, self.workspace, recorded=recorded is not None)
        where = self.workspace.backend.provenance()
        if recorded is not None:
            verdict, where = of_record(verdict, recorded), {}
        synthetic = self.workspace.synthetic(verdict.subject)
        provenance = where | _artifact(self.item) | dict(verdict.provenance)
        self.item.user_properties += _properties(
            gate=verdict.gate,
            subject=verdict.subject,
            status=verdict.status,
            summary=verdict.summary,
            **verdict.facts,
            **({"source": synthetic} if synthetic else {}),
            **({"reasons": "\n".join(reasons(verdict))} if verdict.reasons else {}),
            **{f"provenance.{key}": str(value) for key, value in provenance.items()},
        )
        if verdict.details:
            self.item.add_report_section("call", f"ane {verdict.gate}", "\n".join(verdict.details))
        if blame.is_wanted(verdict, self.workspace.blame):
            told = blame.tell(self.item, self.workspace, verdict)
            self.item.user_properties.append((blame.TOLD, told))
            self.item.add_report_section("call", "ane blame", told)
        if verdict.status == "passed":
            return
        if verdict.status == "unproven" and self.workspace.allows_unproven(verdict.subject):
            return
        pytest.fail(failure(verdict, synthetic), pytrace=False)


def record_error(node: pytest.Item | pytest.Collector, error: AneError) -> None:
    """Record that a gate could not be asked, for the table: its subject must not be missing."""
    spec = getattr(node, "callspec", None)
    if isinstance(node, pytest.Function) and spec is not None:
        status = "not run" if isinstance(error, NotRunError) else "error"
        summary = brief(str(error)).removeprefix(f"{status}: ")
        who = {"gate": gate_of(node), "subject": subject_of(node)}
        node.user_properties += _properties(**who, status=status, summary=summary, reasons=summary)


def unproven(item: pytest.Function, error: UnprovenError) -> None:
    """Record that evidence is wanting; fail the test unless the policy allows it."""
    gate, sentence = cast(Gate, gate_of(item)), str(error)
    verdict = Verdict(gate, subject_of(item), "unproven", brief(error.summary), (sentence,))
    GateKeeper(item, workspace.of(item.config))(verdict)


def subject_of(item: pytest.Function) -> str:
    """The shard's qualified id, or the model's name, whatever else a gate is parametrized by."""
    params = item.callspec.params
    if isinstance(shard := params.get("ane_shard"), Shard):
        return shard.qualified
    return str(params.get("ane_chain", item.callspec.id))


def _artifact(item: pytest.Item) -> dict[str, str]:
    """The digest of the artifact that a gate was given, for measurements that do not name it."""
    found = getattr(item, "funcargs", {}).get("ane_artifact")
    return {"artifact": found.digest} if isinstance(found, Artifact) else {}


def _properties(**facts: float | str) -> list[tuple[str, object]]:
    return [(f"ane.{name}", value) for name, value in facts.items()]
