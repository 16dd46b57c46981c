"""`--ane-ledger`: what the gates of a run measured, line by line."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_ane.audit.ledger import Entry, LedgerWriter, opening_of
from pytest_ane.gates.base import GateTest
from pytest_ane.plugin import due, options
from pytest_ane.plugin.workspace import Workspace


def keep(config: pytest.Config, space: Workspace) -> None:
    """Keep a ledger where one was asked for, in the process that started the run.

    Raises:
        EvidenceError: the file cannot be written, or is another one.
    """
    path = options.ledger(config)
    if path is not None and due.KEY in config.stash:
        config.pluginmanager.register(LedgerKeeper(config, space, path), "ane-ledger")


class LedgerKeeper:
    """Appends what every gate came to, as soon as its report arrives."""

    def __init__(self, config: pytest.Config, space: Workspace, path: Path) -> None:
        tests = config.stash[due.KEY].tests
        opening = opening_of(space.manifest.path, config.rootpath, space.selection, tests)
        self._writer = LedgerWriter(path, opening)
        self._exit_code = int(pytest.ExitCode.INTERNAL_ERROR)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append a gate's report, unless its test goes on."""
        of_gate = getattr(report, "ane_gate", None)
        if of_gate is None or (report.when != "call" and report.passed):
            return
        facts = dict(report.user_properties)
        self._writer.add(
            Entry(
                **GateTest(*of_gate)._asdict(),
                status=str(facts.get("ane.status", "error")),
                outcome=report.outcome,
                statement=getattr(report, "ane_measured", None),
            )
        )

    def pytest_unconfigure(self) -> None:
        """Append the end; a ledger without one is of a run that was cut off."""
        self._writer.close(self._exit_code)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Keep the exit code that all others have come to."""
        result = yield
        self._exit_code = int(session.exitstatus)
        return result
