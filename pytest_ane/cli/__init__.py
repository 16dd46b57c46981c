"""The command line: `pytest-ane init | doctor | cache | explain | evidence | ...`.

Every public module of the tools is a command, imported when it runs.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from pytest_ane import __version__
from pytest_ane.cli import apart
from pytest_ane.cli.options import budget
from pytest_ane.cli.output import Output, complain, execute, write
from pytest_ane.mlprogram.errors import OutputError
from pytest_ane.project.process import TERMINATED, on_terminate

__all__ = ["COMMANDS", "help_of", "load", "main", "parser"]

_TOOLS = Path(__file__).parents[1] / "tools"
_ELSEWHERE = {
    "cluster-keys": "pytest_ane.cluster.keys",
    "try": "pytest_ane.tools._try",
    "worker": "pytest_ane.cluster.command",
}
"""Commands of rooms that build on the tools, and what Python keeps for itself."""
_PIPE = 13
"""SIGPIPE, which Windows lacks."""
ALIASES = {"residency": "explain"}
COMMANDS = tuple(
    sorted(
        {m.name.replace("_", "-") for m in iter_modules([str(_TOOLS)]) if m.name[0] != "_"}
        | _ELSEWHERE.keys()
    )
)


class Command(Protocol):
    """What the module of a command defines; `EXAMPLE` is a command line."""

    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Define its arguments, all but `--json`."""
        ...

    def run(self, options: argparse.Namespace) -> Output:
        """Do it; `AneError` with one sentence where it cannot."""
        ...


def load(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(_module(name)))


def _module(name: str) -> str:
    return _ELSEWHERE.get(name) or f"pytest_ane.tools.{name.replace('-', '_')}"


def help_of(name: str) -> str:
    """What a command does: of its module's first line, which is read and not imported."""
    spec = find_spec(_module(name))
    assert spec is not None
    assert spec.origin is not None
    with Path(spec.origin).open(encoding="utf-8") as file:
        return file.readline().partition("`: ")[2].rstrip('".\n')


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; with the arguments of one alone, if one is named."""
    top = argparse.ArgumentParser(
        prog="pytest-ane", description="Quality gates for Core ML model shards."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        sentence = help_of(name)
        sub = commands.add_parser(
            name,
            aliases=[alias for alias, of in ALIASES.items() if of == name],
            help=sentence,
            description=f"{sentence[0].upper()}{sentence[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command is None or ALIASES.get(command, command) == name:
            module = load(name)
            sub.epilog = f"example:\n  {module.EXAMPLE}"
            module.add_arguments(sub)
            sub.add_argument("--json", action="store_true", help="print the result as JSON")
            sub.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None, here: Path | None = None) -> int:
    """Run a command; 0, or 1 with one sentence on stderr.

    What judges others' work has a process of its own, whose paths are as from `here`.

    As shells count it, 130 after Ctrl-C, and 141 where nobody reads any more.

    SIGTERM raises `SystemExit` with 143, so that temporary files are removed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Where the locale is not UTF-8.
    try:
        if arguments is None and apart.is_judge(words):
            with on_terminate(lambda: sys.exit(TERMINATED)):
                return apart.judge(words)
        try:
            options = parser(words[0] if words else "").parse_args(words)
        except SystemExit:
            write("", end="")
            raise
        options = apart.placed(options, here) if here else options
        with budget(options), on_terminate(lambda: sys.exit(TERMINATED)):
            return execute(options)
    except OutputError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("Interrupted.")
        return 130
    except BrokenPipeError:  # A reader such as head has seen enough; what was asked is not done.
        return 128 + _PIPE
