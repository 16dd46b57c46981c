"""From a verdict, or whatever kept a gate from one, to a test's outcome and its row."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.gates.base import Gate
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Finding, Verdict, nothing
from pytest_ane.manifest import Policy, Shard
from pytest_ane.manifest.policy import WITH_ANE
from pytest_ane.mlprogram.errors import AneError, NotRunError, UnprovenError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin._items import asked_of, gate_of, is_gate, subject_of, workspace_of
from pytest_ane.plugin._workspace import Workspace
from pytest_ane.plugin.recording import ENVIRONMENT, RECORDED, SYSTEMS, note
from pytest_ane.records.verify import with_origin
from pytest_ane.report.run import StoredVerdict
from pytest_ane.report.table import figure_text
from pytest_ane.report.terminal import brief
from pytest_ane.report.verdict import details, failure, properties, to_json
from pytest_ane.tools.blame import blame_shard, cause, lines, tables

TOLD = "ane.blame"
"""Name of the test property that holds the cause."""
_AT_MOST = 3
"""Failed shards that one process explains: each has its uncompressed package built."""
_COUNT = pytest.StashKey[int]()


def tell(item: pytest.Item, space: Workspace, verdict: Verdict) -> tuple[str, Verdict]:
    """What people read of the cause of a shard's error, and the verdict with it."""
    done = item.config.stash.get(_COUNT, 0)
    if space.blame != "always" and done >= _AT_MOST:
        return (
            f"{done} shards were explained already; for this one run: "
            f"pytest-ane blame {verdict.subject}"
        ), verdict
    item.config.stash[_COUNT] = done + 1
    try:
        shard = next(s for s in space.shards if s.qualified == verdict.subject)
        if space.backend_name == "cpu" and isinstance(asked := asked_of(item), Shard):
            shard = shard.in_arithmetic(asked.arithmetic)
        with space.progress.showing(f"searching the cause in {shard.qualified}"):
            blame = (space.cluster.explain if space.cluster else partial(blame_shard, space))(shard)
        text = "\n".join(lines(blame, on_device=space.backend.name == "coreml"))
        findings, found = (*verdict.findings, cause(blame)), (*verdict.tables, *tables(blame))
        return text, replace(verdict, findings=findings, tables=found)
    except AneError as error:
        return f"cause not found: {error}", verdict
    # The verdict stands, whatever goes wrong here.
    except Exception as error:
        why = printable(repr(error))
        return f"internal error while searching the cause (please report): {why}", verdict


def enforced(verdict: Verdict, space: Workspace, *, recorded: bool) -> Verdict:
    """The verdict; unproven without the required device, failed where a figure breaks a limit."""
    if (gate := GATES.get(verdict.gate)) is None and verdict.status == "passed":
        beyond = tuple(
            Finding("failed", figure_text(figure), figure=figure.name)
            for figure in verdict.figures
            if not figure.passes
        )
        return replace(verdict, findings=(*beyond, *verdict.findings))
    if verdict.status != "passed" or gate is None or recorded:
        return verdict
    try:
        if gate.by_device and isinstance(space.backend, CoreMLBackend):
            space.backend.require_ane()
    except UnprovenError as error:
        reason, _, remedy = str(error).partition("; ")
        absent = Finding("unproven", reason, remedy=remedy)
        return replace(verdict, findings=(absent, *verdict.findings))
    policy = space.policy_of(verdict.subject)
    required = gate.recordable and policy.requires_evidence(gate.name)
    if not required or not (lack := _lack(gate, verdict, policy, space)):
        return verdict
    reason = f"policy.{gate.name}.require asks for {gate.requires}, and {lack}"
    return replace(verdict, findings=(Finding("unproven", reason), *verdict.findings))


def _lack(gate: Gate[Any], verdict: Verdict, policy: Policy, space: Workspace) -> str:
    instead = f"let it judge what ane_evidence.of({gate.name!r}) gives"
    if not space.backend.on_device:
        return f"this gate measured on the backend {space.backend.name}; {instead}"
    if "native" in space.backend.provenance():
        return "the answers are replayed, so no device was asked"
    if lack := gate.proves(verdict):
        return f"{lack}; {instead}"
    if space.units not in (policy.evidence.compute_units or WITH_ANE):
        return f"--ane-compute-units={space.units} is none that the policy takes"
    return ""


VERDICT = pytest.StashKey[bytes]()
"""What `StoredVerdict.pack` made of a test's verdict, for the reports of its run."""
PLACE = "ane.place"
"""The property of a test that failed without a verdict: `test_mine.py:18`."""


@dataclass(frozen=True)
class VerdictRecorder:
    """Records verdicts on one test item."""

    item: pytest.Item
    workspace: Workspace

    def __call__(self, verdict: Verdict) -> None:
        """Record the figures as `user_properties`; fail the test unless the verdict allows it."""
        if not isinstance(verdict, Verdict):
            pytest.fail(f"ane_gate takes a Verdict, and was given {verdict!r}.", pytrace=False)
        recorded = self.item.stash.get(RECORDED, None)
        verdict = enforced(verdict, self.workspace, recorded=recorded is not None)
        machine = self.item.stash.get(ENVIRONMENT, None) or self.workspace.backend.provenance()
        if recorded is not None:
            verdict, machine = with_origin(verdict, recorded), {}
        others = self.item.stash.get(SYSTEMS, ())
        if verdict.gate not in GATES:
            # What fails there by a shipped gate's policy is only a note to one of the user's own.
            others = [replace(f, severity="note") if f.severity == "failed" else f for f in others]
        verdict = replace(verdict, findings=(*verdict.findings, *others))
        if self.workspace.strict:
            strict = (replace(f, severity="failed") for f in verdict.warnings)
            kept = (f for f in verdict.findings if f.severity != "warned")
            verdict = replace(verdict, findings=(*strict, *kept))
        model = self.workspace.manifest.model_of(verdict.subject.partition(":")[0])
        synthetic = model.source.synthetic if model.source else ""
        variant = model.variant or ""
        artifact = {"artifact": self.workspace.digest_of(verdict.subject)}
        provenance = machine | artifact | dict(verdict.provenance)
        facts = {"source": synthetic, "variant": variant}
        facts |= {f"provenance.{k}": printable(str(v), LONGEST) for k, v in provenance.items()}
        note(self.item, self.workspace, verdict, recorded, machine)
        self.item.user_properties += _properties(
            **properties(verdict), **{name: text for name, text in facts.items() if text}
        )
        if text := "\n".join(details(verdict, terminal_width(self.item.config))).strip("\n"):
            self.item.add_report_section("call", f"ane {verdict.gate}", text)
        explained = verdict
        if verdict.gate == "fidelity" and self.workspace.blame in ("always", verdict.status):
            told, explained = tell(self.item, self.workspace, verdict)
            self.item.user_properties.append((TOLD, told))
            self.item.add_report_section("call", "ane blame", told)
        self.item.stash[VERDICT] = StoredVerdict.pack(to_json(explained))
        if verdict.status == "passed":
            return
        if verdict.status == "unproven" and self.workspace.allows_unproven(verdict.subject):
            return
        pytest.fail(failure(verdict, synthetic, variant), pytrace=False)


def record_error(node: pytest.Item | pytest.Collector, error: AneError) -> None:
    """Record that a gate could not be asked, for the table: its subject must not be missing."""
    if isinstance(node, pytest.Function) and hasattr(node, "callspec"):
        status = "not run" if isinstance(error, NotRunError) else "error"
        _record(node, status, brief(str(error)).removeprefix(f"{status}: "))


def record_outcome(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Record a gate that failed by `assert`, crashed, or passed without a verdict, for its row."""
    has_verdict = any(name == "ane.gate" for name, _ in item.user_properties)
    if call.when == "teardown" or not is_gate(item) or has_verdict:
        return
    if not isinstance(item, pytest.Function) or asked_of(item) is None:
        return
    if call.excinfo is None:
        if call.when == "call" and gate_of(item) not in GATES:
            _record(item, "passed", "")
        return
    if isinstance(call.excinfo.value, pytest.skip.Exception):
        return
    failed = isinstance(call.excinfo.value, AssertionError | pytest.fail.Exception)
    text = call.excinfo.exconly(tryshort=True)
    text = text.removeprefix("AssertionError: ").removeprefix("Failed: ")
    _record(item, "failed" if failed else "error", text.partition("\n")[0])
    lines = [e.lineno + 1 for e in call.excinfo.traceback if Path(e.path) == item.path]
    root = item.config.rootpath
    if lines and item.path.is_relative_to(root):
        place = f"{item.path.relative_to(root).as_posix()}:{lines[-1]}"
        item.user_properties.append((PLACE, place))


def unproven(item: pytest.Function, error: UnprovenError) -> None:
    """Record an unproven verdict; fail the test unless the policy allows it."""
    reason, _, remedy = str(error).partition("; ")
    verdict = nothing(gate_of(item), subject_of(item), reason, remedy)
    VerdictRecorder(item, workspace_of(item.config))(verdict)


def terminal_width(config: pytest.Config) -> int | None:
    """Columns of the terminal but one, which would wrap; None in a pipe without `COLUMNS`."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or not (reporter.isatty or os.environ.get("COLUMNS")):
        return None
    width: int = reporter._tw.fullwidth - 1
    return width


def properties_of(gate: str, subject: str, status: str, summary: str) -> list[tuple[str, object]]:
    """The properties of a test that came to no verdict, which make its row."""
    summary = printable(summary, LONGEST)
    return _properties(gate=gate, subject=subject, status=status, summary=summary, reasons=summary)


def _record(item: pytest.Function, status: str, summary: str) -> None:
    item.user_properties += properties_of(gate_of(item), subject_of(item), status, summary)


def _properties(**facts: float | str) -> list[tuple[str, object]]:
    # Every test has the same names; they are kept once.
    return [(sys.intern(f"ane.{name}"), value) for name, value in facts.items()]
