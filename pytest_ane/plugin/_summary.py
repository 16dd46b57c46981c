"""The terminal's header line, and its summary: verdicts of all workers, worst first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.pathlib import bestrelpath

from pytest_ane.backends.coreml import without_ane
from pytest_ane.make.shared_store import without_credentials
from pytest_ane.mlprogram.arithmetic import ARITHMETICS, label
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import _canary, _due, _workspace
from pytest_ane.plugin._options import report_files
from pytest_ane.plugin.outcome import PLACE, TOLD, terminal_width
from pytest_ane.plugin.recording import NOTED
from pytest_ane.report.run import Row, StoredVerdict
from pytest_ane.report.terminal import Note, note_lines, table

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter


_COLORS = dict.fromkeys(("error", "failed", "not run"), "red")
_COLORS |= dict.fromkeys(("unproven", "warned"), "yellow")


def header_line(config: pytest.Config) -> str:
    """`ane: L01 · shards 1 of 34 · ...`: what was asked, and what decides the verdicts of a run."""
    space, canaries = _workspace.of(config), _canary.of(config)
    shards, device = space.shards, space.machine
    parts = [
        space.selection,
        f"shards {len(shards)} of {len(space.manifest.shards)}",
        f"backend {space.backend_name}",
    ]
    if device is not None:
        parts += [str(device), space.units]
        if kind := without_ane(device.device_facts()):
            parts.append(f"{kind}, which proves nothing of the ANE")
        parts.append("placement by Core ML's plan")
    else:
        words = [word for word in ARITHMETICS if any(word in shard.arithmetic for shard in shards)]
        if "ane" in words:
            parts.append(f"arithmetic {', '.join(map(label, words))}")
        parts.append(_placement(space))
    parts.append(f"seed {', '.join(dict.fromkeys(str(shard.probes.seed) for shard in shards))}")
    made_up = {s.source.synthetic for s in shards if s.source and s.source.synthetic}
    parts += [f"weights {text}" for text in sorted(made_up)]
    for name in dict.fromkeys(shard.model for shard in shards):
        if first := ", ".join(shard.id for shard in canaries.of(name)):
            parts.append(f"canary {first} first")
        chosen = {shard.id for shard in shards if shard.model == name}
        absent = [id for id in space.manifest.model_of(name).canary if id not in chosen]
        parts += [f"canary {', '.join(absent)} not selected"] if absent else []
    parts += [str(space.threshold)] if space.threshold else []
    parts += {"allow": ["unproven allowed"], "fail": ["unproven fails"]}.get(space.unproven, [])
    stores = map(without_credentials, (space.store_url, space.cluster_url))
    places = zip(("cache", "store", "cluster"), (space.cache_root, *stores), strict=True)
    parts += [f"{word} {place}" for word, place in places if place]
    return printable("ane: " + " · ".join(parts), LONGEST)


def _placement(space: _workspace.Workspace) -> str:
    required = [shard.policy.requires_evidence("placement") for shard in space.shards]
    store = space.evidence
    if required and all(required):
        return "placement by recorded plans"
    if any(required) or any(store.path("placement", s.qualified).exists() for s in space.shards):
        return "placement by recorded plans and forecast"
    return "placement by forecast"


def write(reporter: TerminalReporter, config: pytest.Config) -> None:
    reports = [r for of in reporter.stats.values() for r in of if isinstance(r, pytest.TestReport)]
    rows = [row for row in map(row_of, reports) if row]
    sentence = config.stash[_due.KEY].sentence() if _due.KEY in config.stash else ""
    if not rows or config.get_verbosity() < -1:
        if sentence:
            reporter.write_line(f"ane: {sentence}")
        return
    reporter.write_sep("=", "ane gates")
    width, space = terminal_width(config), _workspace.of(config)
    said = [(r, name, str(value)) for r in reports for name, value in r.user_properties]
    for note in dict.fromkeys(value for _, name, value in said if name == "ane.note"):
        reporter.write_line(printable(f"note: {note}", LONGEST))
    if counts := sum((Counter(getattr(r, "ane_store", {})) for r in reports), Counter[str]()):
        store = without_credentials(space.store_url)
        exchanged = f"{counts['fetched']} entries fetched, {counts['stored']} stored"
        reporter.write_line(printable(f"store {store}: {exchanged}", LONGEST))
    for line in table(
        rows, width=width, everything=config.get_verbosity() > 0, last=_last(config, rows, reports)
    ):
        color = _COLORS.get(line.status, "")
        reporter.write_line(line.text, **({color: True} if color else {}))
    if sentence:
        reporter.write_line(sentence)
    # What was found of shards that passed; of others it stands with their failures.
    for report, name, value in said:
        if name == TOLD and report.passed and report.when == "call":
            subject = dict(report.user_properties)["ane.subject"]
            reporter.write_sep("=", f"ane blame: {subject}")
            reporter.write_line(value)
    noted = (value.split("\n") for r, name, value in said if name == NOTED and r.when == "call")
    notes = [Note(what, file, tuple(more)) for what, file, *more in noted]
    if shown := [*note_lines(notes, space.unused_evidence(), space.evidence.folder.name)]:
        reporter.write_sep("=", "ane evidence")
        for text in shown:
            reporter.write_line(printable(text, LONGEST))


def _last(config: pytest.Config, rows: Sequence[Row], reports: Sequence[pytest.TestReport]) -> str:
    """What took longest, with what it needed first, and where the reports are."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid] += report.duration
    slowest = max(rows, key=lambda row: seconds[row.test])
    files = report_files(config, records=False)
    took = f" · slowest: {slowest.name} {slowest.gate}, {seconds[slowest.test]:.1f} s"
    return took * (len(rows) > 1) + "".join(
        f" · report: {bestrelpath(config.invocation_params.dir, file)}" for file in files
    )


def row_of(report: Any) -> Row | None:
    if not isinstance(report, pytest.TestReport):
        return None
    if report.when != "call" and not (report.when == "setup" and report.failed):
        return None
    if "ane.gate" not in (facts := dict(report.user_properties)):
        return None
    file, _, line = str(facts.get(PLACE, "")).rpartition(":")
    marks = str(facts.get("ane.variant", "")), "synthetic" if "ane.source" in facts else ""
    return Row(
        gate=str(facts["ane.gate"]),
        subject=str(facts["ane.subject"]),
        status=str(facts["ane.status"]),
        summary=str(facts["ane.summary"]),
        warned=facts["ane.status"] == "passed" and "ane.warnings" in facts,
        allowed=facts["ane.status"] == "unproven" and report.passed,
        reasons=tuple(filter(None, str(facts.get("ane.reasons", "")).split("\n"))),
        place=(file, int(line)) if file else None,
        data=StoredVerdict(packed) if (packed := getattr(report, "ane_verdict", None)) else None,
        marks=tuple(filter(None, marks)),
        test=report.nodeid,
        part=getattr(report, "ane_part", ""),
    )
