"""Every command in the README and the docs is executed, or is one that CI itself runs.

Commands are run in one project, whose model is tiny. The pages that newcomers follow are sessions
of their own: what they write and run is done in order, and the output compared with today's.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from pytest_ane.cli import parser
from tests.docs import sessions
from tests.docs.pages import PAGES, ROOT
from tests.docs.sessions import Command, Written
from tests.forked import Forge

_CI = [*(ROOT / ".ci/run").read_text().splitlines(), *(ROOT / "Makefile").read_text().splitlines()]
CI = {word for line in _CI if line.startswith(("make ", "test-all: ")) for word in line.split()}
HEAVY = [pytest.mark.heavy, pytest.mark.drawn]
STEPS = {page: sessions.steps(page) for page in PAGES}
_GUIDES = ("own-gate", "own-tests", "try", "history", "writeup")
SESSIONS = [
    ROOT / "README.md",
    ROOT / "docs/tutorial.md",
    *(ROOT / f"docs/how-to/{name}.md" for name in _GUIDES),
]


def silent() -> dict[str, Path]:
    """Commands outside of sessions, each with the first page that has it."""
    commands: dict[str, Path] = {}
    for page, steps in STEPS.items():
        for step in steps:
            if isinstance(step, Command) and not (page in SESSIONS and step.output):
                commands.setdefault(step.line, page)
    return commands


def test_there_are_commands() -> None:
    assert len(silent()) > 40


def _pages() -> Iterator[ParameterSet]:
    """Each session; tests of the command run what is heavy here."""
    for page in SESSIONS:
        heavy = page.stem == "writeup"
        yield pytest.param(page, id=page.stem, marks=HEAVY if heavy else [])


@pytest.mark.slow
@pytest.mark.parametrize("page", [*_pages()])
def test_session(page: Path, forge: Forge, tmp_path: Path) -> None:
    sessions.furnish(tmp_path)
    for step in STEPS[page]:
        if isinstance(step, Written):
            sessions.write(step, tmp_path)
        elif step.output:
            _, output = sessions.run(forge, step, tmp_path)
            wrong = sessions.difference(list(step.output), sessions.shown(output))
            name = page.relative_to(ROOT)
            assert not wrong, f"{step.line}: {wrong}\nrun: python -m tests.docs.sessions {name}"


def _cases() -> Iterator[ParameterSet]:
    """Each command; those with weights that `make test` does not fetch are heavy.

    What starts a program is drawn.
    """
    for line, page in silent().items():
        fetched = line.startswith("pytest ") and "gemma3-270m" in line
        starts = [] if line.startswith(("make ", "pip ")) else [pytest.mark.drawn]
        yield pytest.param(line, page, id=line, marks=HEAVY if fetched else starts)


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize(("line", "page"), [*_cases()])
def test_command(line: str, page: Path, forge: Forge, project: Path, tmp_path: Path) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        assert arguments[0] in CI, f"{page}: {line} is not run by CI"
    elif program == "pip":
        assert arguments[0] == "install"
    elif program == "dask":
        _shows_help(forge, ["dask", *arguments])
    elif program == "python":
        _shows_help(forge, arguments[:2] if arguments[0] == "-m" else arguments[:1])
    elif program == "pytest-ane" and _takes_long(*arguments):
        # They measure or search for minutes, or need a Mac: tests/tools runs them.
        parser().parse_args(arguments)
    else:
        new = "init" in arguments and not {"--from", "--package"} & {*arguments}
        folder = tmp_path if new else project
        code, output = sessions.run(forge, Command(line), folder, *_more(program, arguments))
        # Nothing is stored in this project, so that there is nothing to compare.
        expected = 4 if arguments == ["--benchmark-compare"] else 0
        assert code == expected, f"{page}: {line}\n{output}"


def _takes_long(command: str, *arguments: str) -> bool:
    if command == "bound":
        return arguments[0].endswith(".toml")
    if "gemma3-270m" in arguments:
        return True
    long = ("calibrate", "bisect", "first-contact", "worker")
    return command in long


def _more(program: str, arguments: list[str]) -> list[str]:
    """Benchmarks, and examples at full size, are collected only: CI runs them."""
    if program == "pytest-ane":
        keeps = ("bound", "cache", "drift", "evidence", "doctor", "bisect")
        return ["--ane-cache", "cache"] if arguments[0] in keeps else []
    example = any(argument.startswith("--ane-manifest=examples") for argument in arguments)
    # tests/cluster has one.
    cluster = any(argument.startswith("--ane-cluster") for argument in arguments)
    return ["--co", "-q"] if example or cluster or "bench" in arguments else []


def _shows_help(forge: Forge, script: list[str]) -> None:
    *more, last = script
    module = more[1:] if more[:1] == ["-m"] else more
    name = last.removesuffix(".py").replace("/", ".")
    done = forge.run([*module, name, "--help"], ROOT)
    assert done.returncode == 0, done.stdout
