"""Pages as sessions: the files that a page writes, the commands it runs, and what these print.

A fence with a title is a file, a line of a `console` fence that begins with `$ ` is a command, and
the lines after it, if any, are its output. `python -m tests.docs.sessions PAGE...` runs a page's
commands that have output in a folder of their own, and writes today's output into the page.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT
from tests.forked import Forge

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
MODULES = {"pytest": "pytest", "pytest-ane": "pytest_ane.cli"}
MACHINE = re.compile(
    r"(platform|benchmark:|rootdir:|configfile:|plugins:|ane: python|ane: \d+ shards? to) "
)
"""Header lines that speak of the machine: pages leave them out."""
PATHS = (
    (re.compile(r" · cache \S+"), ""),
    (re.compile(r"^-+ (generated .*: )\S+/(\S+) -+$"), r"\1\2"),
    (re.compile(r"\brun [0-9a-f]{8}\b"), "run 1a2b3c4d"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b"), "2026-11-21 10:00"),
)
"""Folders, ids and times of this run, which pages leave out or have another one of."""
ELAPSED = re.compile(r"in \d+\.\d+s(?: \(\d+:\d+:\d+\))?| · slowest: .+, \d+\.\d s")
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Written:
    """A file that a page writes: its path in the session's folder, and its text."""

    path: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line without its comment, and the lines that the page shows after it."""

    line: str
    output: tuple[str, ...] = ()


def steps(page: Path) -> list[Written | Command]:
    """What a page does, in its order."""
    fences = FENCE.finditer(page.read_text(encoding="utf-8"))
    return [step for fence in fences for step in _steps(*fence.groups())]


def _steps(language: str, title: str | None, text: str) -> Iterator[Written | Command]:
    if title:
        yield Written(title, text)
    elif language == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, *output = part.rstrip("\n").split("\n")
            yield Command(re.split(r"\s+# ", line)[0].strip(), tuple(output))


def run(forge: Forge, command: Command, folder: Path, *more: str) -> tuple[int, str]:
    """A command's exit code and output, stdout and stderr together."""
    program, *arguments = shlex.split(command.line)
    if ">" in arguments:
        arguments = arguments[: arguments.index(">")]
    done = forge.run([MODULES[program], *arguments, *more], folder)
    return done.returncode, done.stdout


def shown(output: str) -> list[str]:
    """The lines of an output that a page shows: without the machine, and without blanks around."""
    lines = [line.rstrip() for line in output.splitlines() if not MACHINE.match(line)]
    for pattern, text in PATHS:
        lines = [pattern.sub(text, line) for line in lines]
    return "\n".join(lines).strip("\n").split("\n")


def difference(expected: list[str], actual: list[str]) -> str:
    """The first line that differs, or ""; numbers may differ by 1 %, and elapsed time at will."""
    for number, (before, now) in enumerate(zip(expected, actual, strict=False), 1):
        if not _alike(_timeless(before), _timeless(now)):
            return f"line {number}: the page says\n  {before}\nit is\n  {now}"
    if len(expected) != len(actual):
        return f"the page has {len(expected)} lines of output, it is {len(actual)}"
    return ""


def _timeless(line: str) -> str:
    """A line without elapsed time, and without the rule around it, which fills the screen."""
    return re.sub(r"={3,}", "===", ELAPSED.sub("", line))


def _alike(before: str, now: str) -> bool:
    if _words(before) != _words(now):
        return False
    pairs = zip(NUMBER.findall(before), NUMBER.findall(now), strict=True)
    return all(
        abs(a - b) <= 0.01 * max(abs(a), abs(b))
        for a, b in ((float(x.replace(",", "")), float(y.replace(",", ""))) for x, y in pairs)
    )


def _words(line: str) -> list[str]:
    """A line's text between its numbers; how far a table pads them does not count."""
    return [" ".join(part.split()) for part in NUMBER.split(line)]


def rewrite(page: Path, forge: Forge, folder: Path) -> str:
    """A page's text with the output of its commands as it is today."""

    def current(fence: re.Match[str]) -> str:
        text = fence[0]
        for step in _steps(*fence.groups()):
            if isinstance(step, Written):
                write(step, folder)
            elif step.output:
                now = shown(run(forge, step, folder)[1])
                if difference(list(step.output), now):
                    text = text.replace("\n".join(step.output), "\n".join(now), 1)
        return text

    return FENCE.sub(current, page.read_text(encoding="utf-8"))


def write(file: Written, folder: Path) -> None:
    """Write a page's file into the session's folder."""
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(file.text, encoding="utf-8")


def furnish(folder: Path) -> None:
    """The settings of a session's run: a cache of its own, and none of this repository's."""
    (folder / "pytest.ini").write_text("[pytest]\nane_cache = cache\n", encoding="utf-8")


def main(pages: list[str]) -> None:
    """Bring the output on these pages up to date, in place; times are those of whole processes."""
    forge = Forge(forks=False)
    for name in pages:
        with tempfile.TemporaryDirectory() as folder:
            furnish(Path(folder))
            text = rewrite(ROOT / name, forge, Path(folder))
        (ROOT / name).write_text(text, encoding="utf-8")
    forge.close()


if __name__ == "__main__":
    main(sys.argv[1:])
