"""One line on a terminal that shows what is going on; stdout is for results."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Replace the line on stderr, if that is a terminal; an empty text erases it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text[:79]}")
        sys.stderr.flush()
