"""The one table printer: aligned columns, limits in the head, wide tables in parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from pytest_ane.gates.verdict import Cell, Column, Table
from pytest_ane.mlprogram.text import NAME, printable
from pytest_ane.report.figures import amount, limit_of

_LEAST = 20
"""Columns below which no text is wrapped."""
_TEXT = 1000
"""Characters of the last column, which may be a sentence; other texts are names."""


def table(found: Table, width: int | None = None) -> Iterator[str]:
    """The title and the rows; a column without any value is left out.

    A table wider than `width` is printed in parts that repeat the first column; a text in the last
    column is wrapped. None prints it whole.
    """
    if found.title:
        yield f"{found.title}:"
    kept = [
        i for i in range(len(found.columns))
        if any(row[i] not in (None, "") for row in found.rows)
    ]  # fmt: skip
    heads = [head(found.columns[i]) for i in kept]
    rows = [
        [cell(row[i], found.columns[i], _TEXT if i == kept[-1] else NAME) for i in kept]
        for row in found.rows
    ]
    words = [all(isinstance(row[i], str | None) for row in found.rows) for i in kept]
    yield from columns([heads, *rows], words=words, width=width)


def columns(
    rows: Sequence[Sequence[str]],
    *,
    words: int | Sequence[bool] = 1,
    last: bool = False,
    gap: str = "  ",
    width: int | None = None,
) -> Iterator[str]:
    """Aligned cells of rows of equal length, the head first; numbers to the right.

    `words` are which columns are texts, or how many of the first ones; `last` whether the last is,
    too.
    """
    if not rows or not rows[0]:
        return
    count = len(rows[0])
    left = [i < words for i in range(count)] if isinstance(words, int) else list(words)
    left[-1] = left[-1] or last
    widths = [max(len(row[i]) for row in rows) for i in range(count)]
    for number, part in enumerate(_parts(widths, left, len(gap), width)):
        if number:
            yield ""
        for row in rows:
            cells = [
                f"{row[i]:{'<' if left[i] else '>'}{widths[i]}}{gap if i != part[-1] else ''}"
                for i in part
            ]
            yield from _wrapped(cells, left[part[-1]], width)


def _parts(widths: list[int], left: list[bool], gap: int, width: int | None) -> Iterator[list[int]]:
    last = len(widths) - 1
    part: list[int] = []
    for i in range(len(widths)):
        # A last column of text is wrapped where it has some room.
        need = min(widths[i], _LEAST) if i == last and left[i] else widths[i]
        used = sum(widths[j] + gap for j in part)
        if width is not None and len(part) > 1 and used + need > width:
            yield part
            part = [0]
        part.append(i)
    yield part


def _wrapped(cells: list[str], is_text: bool, width: int | None) -> Iterator[str]:
    *first, last = cells
    start, last = "".join(first), last.rstrip() if is_text else last
    room = width - len(start) if width is not None else len(last)
    if not is_text or room < _LEAST or len(last) <= room:
        yield f"{start}{last}".rstrip()
        return
    for number, text in enumerate(textwrap.wrap(last, room, break_on_hyphens=False)):
        yield f"{start if not number else ' ' * len(start)}{text}".rstrip()


def head(column: Column) -> str:
    """The head of a column: `KL nats`, `cosine >= 0.97`."""
    unit = f" {column.unit}" if column.unit in ("dB", "nats") else ""
    if column.limit is None:
        return f"{column.title}{unit}"
    sign = ">=" if column.good == "above" else "<="
    return f"{column.title} {sign} {limit_of(column.limit, column.unit)}"


def cell(value: Cell, column: Column, longest: int = _TEXT) -> str:
    """A cell's text of at most `longest` characters; empty where it is not known."""
    if value is None or isinstance(value, str):
        return printable(value or "", longest)
    unit = "" if column.unit in ("dB", "nats") else column.unit
    if isinstance(value, float) and column.unit in ("dB", "nats"):
        return amount(value, column.unit).rpartition(" ")[0] or amount(value)
    return amount(value, unit)
