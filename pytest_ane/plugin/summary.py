"""The terminal summary: verdicts gathered from all workers, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.report.rows import Row
from pytest_ane.report.terminal import table

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


_COLORS = {
    "error": "red",
    "failed": "red",
    "not run": "red",
    "unproven": "yellow",
    "warned": "yellow",
}


def write(reporter: TerminalReporter, config: pytest.Config) -> None:
    """Write the table; nothing where no gate came to a verdict."""
    rows = [row for reports in reporter.stats.values() for row in map(row_of, reports) if row]
    if not rows or config.get_verbosity() < -1:
        return
    reporter.write_sep("=", "ane gates")
    # The last column stays free: a terminal would wrap a line that fills it.
    width = reporter._tw.fullwidth - 1
    for line in table(rows, width=width, everything=config.get_verbosity() > 0):
        color = _COLORS.get(line.status, "")
        reporter.write_line(line.text, **({color: True} if color else {}))


def row_of(report: Any) -> Row | None:
    """The verdict, or the error before it, that a test report carries, if any."""
    if not isinstance(report, pytest.TestReport):
        return None
    if report.when != "call" and not (report.when == "setup" and report.failed):
        return None
    facts = dict(report.user_properties)
    if "ane.gate" not in facts:
        return None
    return Row(
        gate=str(facts["ane.gate"]),
        subject=str(facts["ane.subject"]) + (" synthetic" if "ane.source" in facts else ""),
        status=str(facts["ane.status"]),
        summary=str(facts["ane.summary"]),
        warned=facts["ane.status"] == "passed" and "ane.warnings" in facts,
        allowed=facts["ane.status"] != "passed" and report.passed,
        reasons=tuple(filter(None, str(facts.get("ane.reasons", "")).split("\n"))),
    )
