"""`pytest-ane explain`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path


def run(package: Path, os: str) -> Iterator[str]:
    """What the placement forecast says of a package, op by op where it matters."""
    from pytest_ane.core.digests import tree_bytes
    from pytest_ane.gates.placement import forecast
    from pytest_ane.mil import read_model
    from pytest_ane.report.placement import explain

    model, width = read_model(package, weights=False), terminal_width()
    lines = explain(forecast(model, size_bytes=tree_bytes(package)), os, width)
    # In a pipe a finding stays on one line, for grep.
    yield from wrapped(lines, width) if width else lines


def terminal_width() -> int | None:
    """Columns of the terminal; None in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines broken at spaces, what is continued indented under its beginning."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line, max(width, 40), subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
