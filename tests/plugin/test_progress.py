"""Progress of long builds on terminals, in pipes and of workers."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from pytest_ane.plugin._process import line
from tests.plugin.conftest import Project


def test_all_workers_are_one_line() -> None:
    notes = [
        {"now": "m:L04", "done": {"m:L00": 1_000_000, "m:L01": 1_000_000}},
        {"now": "m:L03", "done": {"m:L01": 1_000_000, "m:L02": 1_000_000}},
        {"now": "m:L03", "done": {}},
        {"now": "", "done": {}},
    ]
    expected = "m:L03, m:L04 (4 of 34, 3.0 MB done, about 310 s left)"
    assert line(notes, total=34, seconds=30.0) == expected


def on_a_terminal(project: Project, *options: str) -> str:
    """What a run writes to a terminal of its own."""
    command = [sys.executable, "-m", "pytest", "--ane-shards=all", "-m", "gate", *options]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    # Linux reports the end of a pseudo-terminal as an error.
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:
        pass
    os.close(ours)
    assert process.wait() == 0
    return written.decode()


@pytest.mark.slow
def test_a_terminal_shows_progress_and_then_erases_it(project: Project) -> None:
    screen = on_a_terminal(project.packages(good="none", other="none"), "--ane-cache=cache")
    assert "\x1b7 own:good (1 of 2)\x1b[K\x1b8\x1b7 \x1b[K\x1b8" in screen
    # A machine that is slow with the first says how long the second may take.
    second = r"\x1b7 own:other \(2 of 2, 0\.0 MB done(, about \d+ s left)?\)\x1b\[K\x1b8"
    assert re.search(second, screen)


TOGETHER = """
import os
import time
from pathlib import Path
from pytest_ane.make import shard

build = shard._build

def together(*arguments):
    Path(f"at-work-{os.getpid()}").touch()
    last = time.monotonic() + 120
    while len(list(Path().glob("at-work-*"))) < 2 and time.monotonic() < last:
        time.sleep(0.05)
    time.sleep(2)
    build(*arguments)

shard._build = together
"""
"""Builds wait for each other, however far apart their workers start, and for the line's pause."""


@pytest.mark.drawn
@pytest.mark.heavy
def test_workers_are_shown_by_the_process_that_started_them(project: Project) -> None:
    project.llama().pytester.makeconftest(TOGETHER)
    options = ("-n2", "--ane-shards=head*", "-k", "placement", "--ane-cache=cache")
    screen = on_a_terminal(project, *options)
    assert "mini:head.0, mini:head.1 (1 of 2)\x1b[K\x1b8" in screen
    assert "of 2)" not in on_a_terminal(project, *options, "-q", "--ane-cache=other")
