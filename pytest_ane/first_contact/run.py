"""The parent process: children run the steps, and one that dies or hangs is replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

import filelock

from pytest_ane.first_contact.results import Results
from pytest_ane.first_contact.steps import STEPS, Facts, Setup
from pytest_ane.mlprogram.errors import ExecutionError

_LONGEST = 86_400.0
"""Seconds; an alarm takes no time without end."""
_POLL = 0.05
"""Seconds between looks at the child."""
_LAST_WAIT = 10
"""Seconds until a child is left alone that was killed and is still there."""
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
        self._seconds = min(seconds, _LONGEST)
        identity: dict[str, Any] = {
            "pytest_ane": __version__,
            "coremltools": version("coremltools"),
            "steps": [name for name in STEPS if name in steps],
        }
        self.results.open(setup, identity)
        self.results.forget_unsettled(round(self._seconds))

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
        with lock, _awake():
            while left := self.results.left():
                yield from self._with_child(left)

    def _with_child(self, left: Sequence[str]) -> Iterator[tuple[str, Facts]]:
        self.results.forget_running()
        log = self.results.folder / "log.txt"
        with log.open("ab") as output:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pytest_ane.first_contact",
                    str(self.results.folder),
                    f"{self._seconds:g}",
                ],
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
        # This clock stands still while a Mac sleeps, as its processes do.
        started, began = monotonic(), None
        while (facts := self.results.facts(name)) is None:
            running = self.results.running()
            if running == name and began is None:
                began = monotonic()
            if (code := child.poll()) is not None:
                return self.results.facts(name) or self._ended(name, code)
            if began is not None and monotonic() - began > self._seconds:
                _kill(child)
                return self._kept(name, {"hung": round(self._seconds)})
            if running is None and monotonic() - started > _START:
                raise ExecutionError(
                    f"first-contact: its child process did not begin within {_START} s; see "
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
        return self._kept(name, {"ended": describe(code)}) if running == name else None

    def _kept(self, name: str, facts: Facts) -> Facts:
        self.results.write(name, facts)
        return facts


@contextmanager
def _awake() -> Iterator[None]:
    """Keep a Mac from going to sleep, as one does that nobody attends to."""
    if (tool := shutil.which("caffeinate")) is None:
        yield
        return
    with subprocess.Popen([tool, "-i", "-w", str(os.getpid())], stdin=subprocess.DEVNULL) as keeper:
        try:
            yield
        finally:
            keeper.kill()


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
    with suppress(subprocess.TimeoutExpired):  # In a call of the kernel that does not return.
        child.wait(_LAST_WAIT)
    if child.stdin:
        with suppress(OSError):
            child.stdin.close()
