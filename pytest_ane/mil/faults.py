"""What is wrong with a file: raised where it is found, placed by whoever knows where that is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 80


class Fault(Exception):
    """One thing wrong in a package, told without the file's name; `read` and `blob` add it."""


@contextmanager
def at(place: str) -> Iterator[None]:
    """Says where a fault was found: `operation 'y' (conv): input 'weight': ...`."""
    try:
        yield
    except Fault as fault:
        raise Fault(f"{place}: {fault}") from None


def quote(name: str) -> str:
    """A name out of a file for people: quoted, printable, not endless."""
    shown = "".join(char if char.isprintable() else "?" for char in name)
    return f"'{shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '...'}'"
