"""A curve of letters: values on a logarithmic scale, one shard after another, 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

_WIDTH = 68
_HEIGHT = 8
_DECADES = 6
"""What is smaller than the largest by more lies on the floor."""


def chart(title: str, series: Mapping[str, Sequence[float]], names: Sequence[str]) -> Iterator[str]:
    """Lines of a chart; `series` are values by the letter that marks them, later ones on top.

    Where there are more values than columns, a column shows the largest of several. NaN and
    infinity are `!` in the top line.
    """
    finite = [v for values in series.values() for v in values if math.isfinite(v) and v > 0]
    top = math.log10(max(finite, default=1.0))
    low = max(math.log10(min(finite, default=1.0)), top - _DECADES)
    step = max(top - low, 1e-9) / (_HEIGHT - 1)
    wide = max(1, min(4, _WIDTH // max(len(names), 1)))
    columns = min(len(names), _WIDTH)
    canvas = [[" "] * (columns * wide) for _ in range(_HEIGHT)]
    for mark, values in series.items():
        for i, value in enumerate(_binned(values, columns)):
            row = _row(value, low, step)
            canvas[row][i * wide] = mark if math.isfinite(value) else "!"
    yield title
    for i in reversed(range(_HEIGHT)):
        yield f"{10 ** (low + i * step):9.1e} |{''.join(canvas[i])}".rstrip()
    yield f"{'':9} +{'-' * (columns * wide)}"
    yield _axis(names, columns * wide)


def _row(value: float, low: float, step: float) -> int:
    if not math.isfinite(value):
        return _HEIGHT - 1
    place = (math.log10(value) - low) / step if value > 0 else 0
    return min(max(round(place), 0), _HEIGHT - 1)


def _binned(values: Sequence[float], columns: int) -> Iterator[float]:
    """The largest of each column's values; NaN is larger than any."""
    for i in range(columns):
        start, end = i * len(values) // columns, (i + 1) * len(values) // columns
        yield max(values[start:end], key=lambda v: math.inf if math.isnan(v) else v)


def _axis(names: Sequence[str], width: int) -> str:
    if not names or width < len(names[0]) + len(names[-1]) + 1:
        return ""
    return f"{'':11}{names[0]}{names[-1]:>{width - len(names[0])}}"
