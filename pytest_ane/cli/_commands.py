"""The commands of `pytest-ane`: a module of the tools each, imported when the command runs."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from pytest_ane import __version__
from pytest_ane.cli.output import Output

_TOOLS = Path(__file__).parents[1] / "tools"
_ELSEWHERE = {"worker": "pytest_ane.cluster.command"}
"""Commands of rooms that build on the tools."""
COMMANDS = tuple(
    sorted(
        {m.name.replace("_", "-") for m in iter_modules([str(_TOOLS)]) if m.name[0] != "_"}
        | _ELSEWHERE.keys()
    )
)
"""Every public module of the tools is a command."""


class Command(Protocol):
    """What the module of a command defines; it is cheap to import, `run` imports what it needs.

    Attributes:
        HELP: one sentence without a capital and a full stop.
        EXAMPLE: a command line.

    `ALIASES`, other names of the command, may be left out.
    """

    HELP: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Define its arguments, all but `--json`."""
        ...

    def run(self, options: argparse.Namespace) -> Output:
        """Do it; `AneError` with one sentence where it cannot."""
        ...


def load(name: str) -> Command:
    """The module of a command."""
    module = _ELSEWHERE.get(name) or f"pytest_ane.tools.{name.replace('-', '_')}"
    return cast(Command, import_module(module))


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; of one alone, if `command` is the name of one."""
    top = argparse.ArgumentParser(
        prog="pytest-ane", description="Quality gates for Core ML model shards."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (command,) if command in COMMANDS else COMMANDS:
        module = load(name)
        sub = commands.add_parser(
            name,
            aliases=getattr(module, "ALIASES", ()),
            help=module.HELP,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
        sub.set_defaults(run=module.run)
    return top
