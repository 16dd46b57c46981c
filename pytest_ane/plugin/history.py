"""`--ane-history`: what every gate measured, a line each, for the memory of many runs."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ane.evidence import Statement
from pytest_ane.evidence.question import question
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.history.lines import History, Line, machine_of
from pytest_ane.mlprogram.digests import key_digest
from pytest_ane.mlprogram.errors import AneError, HistoryError
from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.plugin import options
from pytest_ane.plugin.items import gate_of, part_of, subject_of
from pytest_ane.plugin.run import is_worker
from pytest_ane.records.git import checkout

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from pytest_ane.plugin.workspace import Workspace

LINE = pytest.StashKey[dict[str, Any]]()
"""What a test measured, as plain data: reports carry it to the process that writes."""
_VERSIONS = ("pytest-ane", "numpy", "coremltools", "compiler", "python")


def keep(config: pytest.Config, space: Workspace) -> None:
    """Let the process that started the run write lines, where that was asked for.

    Raises:
        HistoryError: the folder cannot be written.
    """
    if space.history is not None and not is_worker(config) and not config.option.collectonly:
        config.pluginmanager.register(HistoryKeeper(config, space), "ane-history")


class HistoryKeeper:
    """Appends what every gate measured, as soon as its report arrives."""

    def __init__(self, config: pytest.Config, space: Workspace) -> None:
        assert space.history is not None
        self._config = config
        self._run = space.run_id
        self._history = History(space.history)
        root = options.history_base(config, space.manifest.path)
        self._commit, self._clean = checkout(root, but=space.history)
        self._written = 0
        self._lost = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append a gate's line; one that is lost fails no test, and the summary says it."""
        measured: Mapping[str, Any] | None = getattr(report, "ane_history", None)
        if measured is None or report.when != "call":
            return
        now = datetime.now(timezone.utc)
        line = Line(self._run, _written(now), self._commit, self._clean, **measured)
        try:
            self._history.append(line)
            self._written += 1
        except HistoryError as error:
            self._lost = str(error)

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """How many lines were written, under `-v`; and always, that some were lost."""
        if self._lost:
            text = printable(f"ane: the history: {self._lost}", LONGEST)
            terminalreporter.write_line(text, yellow=True)
        elif self._config.get_verbosity() > 0:
            folder = printable(str(self._history.folder), LONGEST)
            count = f"{self._written} line{'' if self._written == 1 else 's'}"
            terminalreporter.write_line(f"ane: {count} of history in {folder}")


def note(
    item: pytest.Item,
    space: Workspace,
    verdict: Verdict,
    recorded: Statement | None,
    machine: Mapping[str, str],
) -> None:
    """Keep a verdict's figures with its test, where the run has a memory; limits are left out.

    Args:
        item: the test.
        space: the run's workspace.
        verdict: the gate's.
        recorded: what was judged, if it was recorded.
        machine: provenance of the backend that measured, if nothing was.
    """
    if space.history is None or not isinstance(item, pytest.Function):
        return
    gate, name = gate_of(item), subject_of(item)
    known = GATES.get(gate)
    derived = known.derived if known else ()
    figures = {f.name: f.value for f in verdict.figures if f.name not in derived}
    subject = _subject(space, name)
    if not figures or subject is None:
        return
    if recorded is not None:
        facts = {**recorded.environment, **verdict.provenance}
    else:
        facts = {**machine, **space.identity, **verdict.provenance}
        facts["python"] = platform.python_version()
    runs = known is None or known.by_device or "backend" in verdict.provenance
    item.stash[LINE] = {
        "gate": gate,
        "subject": name,
        "test": part_of(item),
        "artifact": _artifact(space, subject),
        "question": _question(space, gate, subject),
        "recorded": _written(recorded.recorded) if recorded else "",
        "versions": {key: str(facts[key]) for key in _VERSIONS if key in facts},
        "figures": figures,
        **_place(facts, runs=runs),
    }


def _written(time: datetime) -> str:
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(facts: Mapping[str, Any], *, runs: bool) -> dict[str, str]:
    """Where figures come from."""
    build = f" ({facts['os_build']})" if facts.get("os_build") else ""
    made = {
        "backend": facts.get("backend", "") if runs else "",
        "arithmetic": facts.get("arithmetic", ""),
        "machine": machine_of(facts),
        "chip": facts.get("chip", ""),
        "os": f"{facts['os']}{build}" if facts.get("os") else facts.get("system", ""),
        "compute_units": facts.get("compute_units", ""),
    }
    return {key: str(value) for key, value in made.items()}


def _subject(space: Workspace, name: str) -> Subject | None:
    """The shard or model of a qualified name; None where the manifest has none."""
    subjects: tuple[Subject, ...] = (*space.shards, *space.manifest.models)
    for subject in subjects:
        if subject.qualified == name:
            return subject
    return None


def _artifact(space: Workspace, subject: Subject) -> str:
    if (digest := space.digest_of(subject.qualified)) or subject not in space.manifest.models:
        return digest
    parts = {s.qualified: space.digest_of(s.qualified) for s in space.manifest.shards
             if s.model == subject.qualified}  # fmt: skip
    return key_digest(parts) if all(parts.values()) else ""


def _question(space: Workspace, gate: str, subject: Subject) -> str:
    """Empty for a gate of the user's own, and where nobody can tell."""
    if gate not in GATES:
        return ""
    model = space.manifest.model_of(subject.qualified.partition(":")[0])
    try:
        asked = question(gate, subject, model, lambda: space.model(model.name).identity)
    except (AneError, OSError):
        return ""
    return key_digest(asked) if asked else ""
