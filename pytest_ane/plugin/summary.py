"""The terminal summary: verdicts gathered from all workers, worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.report.terminal import Row, table

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


def write(reporter: TerminalReporter, config: pytest.Config) -> None:
    """Write the table; nothing where no gate came to a verdict."""
    rows = [row for reports in reporter.stats.values() for row in map(_row, reports) if row]
    if not rows or config.get_verbosity() < -1:
        return
    reporter.section("ane gates", sep="=")
    width = reporter._tw.fullwidth
    for line in table(rows, width=width, everything=config.get_verbosity() > 0):
        color = {"failed": "red", "unproven": "yellow"}.get(line.status, "")
        reporter.write_line(line.text, **({color: True} if color else {}))


def _row(report: Any) -> Row | None:
    """The verdict that a test report carries, if any."""
    if not isinstance(report, pytest.TestReport) or report.when != "call":
        return None
    facts = dict(report.user_properties)
    if "ane.gate" not in facts:
        return None
    return Row(
        gate=str(facts["ane.gate"]),
        subject=str(facts["ane.subject"]),
        status=str(facts["ane.status"]),
        summary=str(facts["ane.summary"]),
    )


