"""What is deleted only after a yes."""

from __future__ import annotations

import sys


def confirmed(question: str, yes: bool) -> bool:
    """Whether to delete: by `--yes`, or by an answer at the terminal; without either, no."""
    if yes:
        return True
    # `None` where a stream was closed before Python started.
    if not all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        return False
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
