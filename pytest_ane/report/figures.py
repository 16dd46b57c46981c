"""Numbers as people read them, with their units and beside their limits."""

from __future__ import annotations

import math

from pytest_ane.gates.verdict import RATIO, Cell, Figure
from pytest_ane.mlprogram.text import size_ratio

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
