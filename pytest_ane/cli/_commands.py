"""The commands of `pytest-ane`: a module of the tools each, imported when the command runs."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Protocol, cast

from pytest_ane import __version__
from pytest_ane.cli.output import Output

COMMANDS = {
    "bisect": "find the fewest shards to blame for a red stack",
    "blame": "trace a shard's error to weights and operations",
    "bound": "bound each kind of shards by bandwidth and compute, and show what would help",
    "cache": "list, prune or share built shards and recordings",
    "calibrate": "measure how much benchmarks differ when nothing changed",
    "compress": "compress a package's weights, and say what became of each",
    "diff": "compare two packages, or two arithmetics, op by op on the same inputs",
    "doctor": "check what a run needs: versions, disk, models",
    "drift": "measure what each shard does to the hidden states",
    "evidence": "list, show, verify, compare or prune a Mac's evidence, or judge a run again",
    "explain": "say where a package's ops run, or a recorded plan's; or list its weights",
    "first-contact": "test on a Mac what the Core ML backend assumes, and record how its ANE "
    "computes",
    "golden": "record a reference's outputs as golden tensors",
    "history": "ask the memory of many runs: when a figure stepped, and what two runs differ in",
    "init": "write a commented shards.toml, of a model that you have, and own gates",
    "recommend": "search the smallest compression that passes every gate",
    "report": "make the page of a recorded run, or write an experiment up",
    "run": "run a model on this machine's CPU, without Core ML",
    "schema": "print the JSON Schema of shards.toml",
    "speculate": "measure whether drafts by prompt lookup make decoding faster",
    "worker": "let this machine build and measure for runs with --ane-cluster",
}
"""A sentence on each, without a capital and a full stop."""
ALIASES = {"residency": "explain"}
_ELSEWHERE = {"worker": "pytest_ane.cluster.command"}


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
    module = _ELSEWHERE.get(name) or f"pytest_ane.tools.{name.replace('-', '_')}"
    return cast(Command, import_module(module))


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; with the arguments of one alone, if one is named."""
    top = argparse.ArgumentParser(
        prog="pytest-ane", description="Quality gates for Core ML model shards."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, sentence in COMMANDS.items():
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
