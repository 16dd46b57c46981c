"""The command line: `pytest-ane init | doctor | cache | explain | evidence | ...`."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from pytest_ane.cli._commands import parser
from pytest_ane.cli.options import budget
from pytest_ane.cli.output import complain, execute, write
from pytest_ane.mlprogram.errors import OutputError
from pytest_ane.project.process import TERMINATED, on_terminate

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0, or 1 with one sentence on stderr; 130 after Ctrl-C, as shells count it.

    SIGTERM raises `SystemExit` with 143, so that temporary files are removed.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Where the locale is not UTF-8.
    try:
        try:
            options = parser(words[0] if words else "").parse_args(words)
        except SystemExit:
            write("", end="")
            raise
        with budget(options), on_terminate(lambda: sys.exit(TERMINATED)):
            return execute(options)
    except OutputError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        complain("Interrupted.")
        return 130
    except BrokenPipeError:  # A reader such as head has seen enough.
        return 0
