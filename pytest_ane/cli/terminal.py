"""The terminal: its width, a status line on stderr, and a question before anything is deleted."""

from __future__ import annotations

import argparse
import shutil
import sys

from pytest_ane.mlprogram.text import printable


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None in a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None


def tell(text: str, *, stays: bool = False) -> None:
    """Replace the status line on stderr, if that is a terminal; an empty text erases it.

    One that stays is a line of its own, whole.
    """
    if sys.stderr and sys.stderr.isatty():
        line = f"{printable(text)}\n" if stays else printable(text)[:79]
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def confirmed(question: str, options: argparse.Namespace) -> bool:
    """Whether to delete: by `--yes`, or by an answer at the terminal; without either, no."""
    if options.yes:
        return True
    # `None` where a stream was closed before Python started.
    if options.json or not all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        return False
    try:
        return input(f"{printable(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
