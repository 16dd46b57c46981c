"""From a verdict to a test's outcome."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_ane.plugin.workspace import Workspace
from pytest_ane.report.text import failure
from pytest_ane.verdict import Verdict


@dataclass(frozen=True)
class GateKeeper:
    """Records verdicts on one test item."""

    item: pytest.Item
    workspace: Workspace

    def __call__(self, verdict: Verdict) -> None:
        """Record the facts as `user_properties`; fail the test unless the verdict allows it."""
        self.item.user_properties += [
            ("ane.gate", verdict.gate),
            ("ane.subject", verdict.subject),
            ("ane.status", verdict.status),
            ("ane.summary", verdict.summary),
            *((f"ane.{name}", value) for name, value in verdict.facts.items()),
        ]
        if verdict.details:
            self.item.add_report_section("call", f"ane {verdict.gate}", "\n".join(verdict.details))
        if verdict.status == "passed":
            return
        if verdict.status == "unproven" and self.workspace.allows_unproven(verdict.subject):
            return
        pytest.fail(failure(verdict), pytrace=False)
