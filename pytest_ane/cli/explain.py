"""`pytest-ane explain`, also `residency`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_ane.cli.options import add_function
from pytest_ane.cli.output import Output
from pytest_ane.cli.terminal import terminal_width

HELP = "forecast a package's placement, op by op"
EXAMPLE = "pytest-ane explain encoder.mlpackage --os 'macOS 15'"
ALIASES = ("residency",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package and the system."""
    parser.add_argument(
        "package", type=Path, help="an .mlpackage or .mlmodelc; weights may be absent"
    )
    add_function(parser, "all")
    parser.add_argument("--os", default="macOS 26", help="target system (default: macOS 26)")


def run(options: argparse.Namespace) -> Output:
    """The placement forecast of a package; findings on its operations under their rules."""
    from pytest_ane.core.digests import tree_bytes
    from pytest_ane.gates.placement import forecast
    from pytest_ane.mil import read_model
    from pytest_ane.report.placement import explain

    model = read_model(options.package, weights=False, function=options.function)
    width = terminal_width()
    placement = forecast(model, size_bytes=tree_bytes(options.package))
    lines = explain(placement, options.os, width)
    # In a pipe a finding stays on one line, for grep.
    yield from wrapped(lines, width) if width else lines
    placement = placement.under(options.os)
    return {"outcome": placement.outcome, **vars(placement)}


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines broken at spaces, what is continued indented under its beginning."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line, max(width, 40), subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
