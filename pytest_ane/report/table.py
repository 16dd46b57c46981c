"""Numbers with their units and limits, and the one table printer: columns, wide tables in parts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from pytest_ane.gates.verdict import RATIO, Cell, Column, Figure, Table
from pytest_ane.mlprogram.text import NAME, printable, size_ratio

_BYTES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))
_DECIMALS = {"%": 1, "dB": 1, "nats": 4, "x": 2, "tok/s": 2}
_MOST_DIGITS = 12
_MOST = 1e9
"""From which a number is written as a power of ten."""


def amount(value: Cell, unit: str = "", more: int = 0) -> str:
    """A number with its unit: `0.9950`, `3.07 MB`, `17.7 dB`, `95.1%`, `16 probes`.

    `unit` is as of a `Figure`, in the singular for one; `more` are digits besides the usual ones.
    Texts are returned as they are, None is `-`.
    """
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    head, _, tail = unit.partition(" ")
    if unit == RATIO:
        return size_ratio(value, 2 + more)
    if unit == "bytes":
        return _of_bytes(value, more)
    if unit == "s":
        return f"{value:.{2 + more}f} s" if value >= 1 else f"{1000 * value:.{4 + more}g} ms"
    if head in _DECIMALS:
        scale = 100 if unit == "%" else 1
        decimals = 0 if unit == "tok/s" and value >= 100 else _DECIMALS[head]
        space = "" if head in ("%", "x") else " "
        text = f"{scale * value:,.{decimals + more}f}"
        text = text if abs(scale * value) < _MOST else f"{scale * value:.{4 + more}g}"
        return f"{text}{space}{head}{' ' + tail if tail else ''}"
    if isinstance(value, int):
        return f"{value:,} {_counted(value, unit)}".rstrip()
    return f"{_plain(value, more)} {unit}".rstrip()


def limit_of(limit: float, unit: str) -> str:
    """A limit as somebody wrote it: `0.97`, `500 kB`, `90%`."""
    if unit == "bytes":
        return _of_bytes(limit, 0, trim=True)
    if unit == "%":
        return f"{100 * limit:g}%"
    return f"{limit:g} {unit}" if unit in ("dB", "nats", "s", "tok/s") else f"{limit:g}"


def figure_text(figure: Figure) -> str:
    """A figure and its limit: `cosine 0.9950 (needs 0.97)`, `cosine 0.9500 < 0.97 (worst of 2)`."""
    text = amount(figure.value, figure.unit)
    if figure.limit is not None:
        text, _ = apart(figure.value, figure.limit, figure.unit)
    if figure.of is not None:
        text = f"{figure.value:,} of {figure.of:,} {_counted(int(figure.of), figure.unit)}"
    if figure.label:
        text = f"{figure.label} {text}"
    note = f" ({figure.note})" if figure.note else ""
    if figure.limit is None:
        return text + note
    limit = limit_of(figure.limit, figure.unit)
    if figure.unit == RATIO and not isinstance(figure.value, str) and figure.value < 1:
        return f"{text} (needs a ratio of {limit})"
    undefined = isinstance(figure.value, float) and math.isnan(figure.value)
    if figure.passes or undefined:
        asks = "needs" if figure.good == "above" else "at most"
        return f"{text} ({asks} {limit.removesuffix(f' {figure.unit}')})"
    return f"{text} {'<' if figure.good == 'above' else '>'} {limit}{note}"


def apart(value: Cell, other: Cell, unit: str) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart."""
    for more in range(_MOST_DIGITS):
        texts = amount(value, unit, more), amount(other, unit, more)
        if value == other or texts[0] != texts[1]:
            break
    return texts


def _plain(value: float, more: int) -> str:
    size = abs(value)
    if value == 0 or 1e-3 <= size < 10:
        return f"{value:.{4 + more}f}"
    return f"{value:,.{1 + more}f}" if 10 <= size < _MOST else f"{value:.{4 + more}g}"


def _of_bytes(value: float, more: int, *, trim: bool = False) -> str:
    divisor, name = next((d, n) for d, n in _BYTES if value >= d or d == 1)
    if divisor == 1:
        return f"{value:g} byte" if value == 1 else f"{value:g} bytes"
    return f"{value / divisor:g} {name}" if trim else f"{value / divisor:.{2 + more}f} {name}"


def _counted(count: float, unit: str) -> str:
    """What is counted, in the singular for one: its first word loses its `s`."""
    first, _, rest = unit.partition(" ")
    if count == 1 and first.endswith("s"):
        first = first[:-1]
    return f"{first} {rest}".strip()


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
