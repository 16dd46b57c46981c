"""The command line: `pytest-ane init | schema | doctor | cache | explain | evidence | ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pytest_ane.cli.commands import parser
from pytest_ane.core.errors import AneError

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0, or 1 with one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        for line in options.run(options):
            print(line, flush=options.command in ("recommend", "calibrate"))
        sys.stdout.flush()
    except AneError as error:
        print(f"pytest-ane: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of a pipe, such as head, has seen enough; what is left goes nowhere, so that
        # the interpreter's own flush at exit finds no broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
