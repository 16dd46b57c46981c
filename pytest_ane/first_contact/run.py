"""The parent process: children run the steps, and one that dies or hangs is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import sleep, time
from typing import Any

import filelock

from pytest_ane.core.errors import ExecutionError
from pytest_ane.first_contact.results import Results
from pytest_ane.first_contact.steps import STEPS, Facts, Setup

_POLL = 0.05
"""Seconds between looks at the child."""
_START = 180
"""Seconds in which a child must begin its first step; coremltools takes some to import."""


class Run:
    """Runs steps that have no facts yet.

    Args:
        setup: what the steps need; its folder holds the facts.
        steps: which of `STEPS`.
        seconds: how long each may take.

    Raises:
        ExecutionError: the folder holds a run of another setup.
    """

    def __init__(self, setup: Setup, steps: Sequence[str], seconds: float) -> None:
        from importlib.metadata import version

        from pytest_ane import __version__

        self.results = Results(setup.folder)
        self._seconds = seconds
        identity: dict[str, Any] = {
            "pytest_ane": __version__,
            "coremltools": version("coremltools"),
            "steps": [name for name in STEPS if name in steps],
        }
        self.results.open(setup, identity)

    def __iter__(self) -> Iterator[tuple[str, Facts]]:
        """Each step with its facts, as they come.

        Raises:
            ExecutionError: another run uses the folder, or a child cannot even start.
        """
        lock = filelock.FileLock(self.results.folder / "lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ExecutionError(
                f"{self.results.folder}: another run uses this folder; wait for it, or name "
                "another with --folder."
            ) from None
        with lock:
            while left := self.results.left():
                yield from self._with_child(left)

    def _with_child(self, left: Sequence[str]) -> Iterator[tuple[str, Facts]]:
        self.results.forget_running()
        log = self.results.folder / "log.txt"
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "pytest_ane.first_contact", str(self.results.folder)],
                stdin=subprocess.PIPE,  # Closed when this process ends, by whatever signal.
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            for name in left:
                facts = self._facts(child, name)
                if facts is None:
                    return
                yield name, facts
        finally:
            _kill(child)

    def _facts(self, child: subprocess.Popen[bytes], name: str) -> Facts | None:
        """A step's facts, written here if it ends the child or hangs; None if it never began."""
        started = time()
        while (facts := self.results.facts(name)) is None:
            running = self.results.running()
            began = running is not None and running[0] == name
            limit, since = (self._seconds, running[1]) if running else (_START, started)
            if (code := child.poll()) is not None:
                return self.results.facts(name) or self._ended(name, code)
            if began and time() - since > limit:
                _kill(child)
                return self._kept(name, {"hung": round(limit)})
            if running is None and time() - since > limit:
                raise ExecutionError(
                    f"first-contact: its child process did not begin within {limit} s; see "
                    f"{self.results.folder / 'log.txt'}."
                )
            sleep(_POLL)
        return facts

    def _ended(self, name: str, code: int) -> Facts | None:
        running = self.results.running()
        if running is None:
            tail = (self.results.folder / "log.txt").read_text(errors="replace").strip()
            raise ExecutionError(
                f"first-contact: its child process ended before the step {name} "
                f"({describe(code)}): {tail.splitlines()[-1] if tail else 'it says nothing'}."
            )
        return self._kept(name, {"ended": describe(code)}) if running[0] == name else None

    def _kept(self, name: str, facts: Facts) -> Facts:
        self.results.write(name, facts)
        return facts


def describe(code: int) -> str:
    """`SIGABRT` or `exit code 3` of a process that ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child with the processes it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin:
        with suppress(OSError):
            child.stdin.close()
