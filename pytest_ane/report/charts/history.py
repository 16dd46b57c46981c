"""The picture of one figure over commits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import altair as alt

from pytest_ane.gates.verdict import Column, Side, Table
from pytest_ane.report.charts.picture import (
    WIDTH,
    Datum,
    Picture,
    at_edge,
    data,
    edge,
    label,
    marked,
    off_scale,
    rounded,
)
from pytest_ane.report.figures import amount, limit_of

_HEIGHT = 200


def history(
    title: str,
    series: Sequence[tuple[str, str, float]],
    step: int | None = None,
    *,
    unit: str = "",
    limit: float | None = None,
    good: Side | None = None,
) -> Picture | None:
    """One figure over commits, the commit marked at which it stepped.

    Args:
        title: the figure's name and its subject.
        series: label, time and value of each measurement, the oldest first; labels may repeat.
        step: index of the first measurement after the step.
        unit: as of a `Figure`.
        limit: of the policy.
        good: the side of the limit that passes.

    Returns:
        None where nothing was measured.
    """
    if not series:
        return None
    names = _unique([label(name) for name, _, _ in series])
    rows = [
        _datum(name, time, value, unit)
        for name, (_, time, value) in zip(names, series, strict=True)
    ]
    x = alt.X("name:O", sort=None, title=None, axis=alt.Axis(labelOverlap="greedy"))
    y = alt.Y("value:Q", title=unit or None, scale=alt.Scale(zero=False))
    base = alt.Chart(data(rows)).encode(
        x=x,
        tooltip=[
            alt.Tooltip("name:N", title="commit"),
            alt.Tooltip("time:N"),
            alt.Tooltip("shown:N", title="value"),
        ],
    )
    layers: list[alt.Chart] = [
        base.mark_line(point=True).encode(y=y),
        at_edge(base),
    ]
    told = f"{title}: {amount(len(series), 'measurements')}, "
    told += f"{amount(series[-1][2], unit)} at the last."
    if step is not None and 0 < step < len(series):
        values = (amount(value, unit) for _, _, value in series[step - 1 : step + 1])
        words = " to ".join(values)
        layers += marked(x, names[step], words, step / len(series))
        told += f" It steps at {series[step][0]}: {words}."
    if limit is not None:
        rule = alt.Chart(data([{"value": limit}]))
        layers.append(rule.mark_rule(style="limit").encode(y=y))
        told += f" The policy asks for at {'least' if good == 'above' else 'most'} "
        told += f"{limit_of(limit, unit)}."
    odd = [name for name, _, value in series if not math.isfinite(value)]
    return Picture(
        title,
        alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT),
        told + off_scale(odd),
        Table(
            title,
            (Column("commit"), Column("time"), Column("value", unit, limit, good)),
            tuple(series),
            "history",
        ),
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number where one occurs again: an axis has a place for each."""
    seen: Counter[str] = Counter()
    made = []
    for name in names:
        seen[name] += 1
        made.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return made


def _datum(name: str, time: str, value: float, unit: str) -> Datum:
    made: Datum = {"name": name, "time": label(time), "shown": amount(value, unit)}
    return made | ({"edge": edge(value)} if edge(value) else {"value": rounded(value)})
