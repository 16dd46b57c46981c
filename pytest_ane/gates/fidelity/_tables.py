"""Tables of the fidelity gate's verdict: probes, how their errors are spread, and coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from pytest_ane.gates.fidelity._records import (
    FIRST_COSINE,
    MEAN_COSINE,
    METRICS,
    MIN_COSINE,
    Comparison,
    Fidelity,
    Group,
)
from pytest_ane.gates.verdict import Cell, Column, Table, rounded
from pytest_ane.manifest.policy import OutputPolicy

Groups = Mapping[OutputPolicy, Group]
"""Comparisons that are judged, by the thresholds of their outputs."""

_BINS = 8
"""Bins of the histogram of the worst probe's cosines, and the positions it takes at least."""
_ERROR_BINS = 12
"""Bins of the histogram of each probe's errors."""


def tables(fidelity: Fidelity, groups: Groups) -> Iterator[Table]:
    """All comparisons, how the errors of each are spread, and what probes exercise."""
    ranked = sorted(fidelity.comparisons, key=_rank)
    yield _probes(ranked, groups)
    worst = next((c for c in ranked if len(c.cosines) >= _BINS), None)
    if worst is not None and np.isfinite(worst.cosines).all():
        counts, edges = np.histogram(worst.cosines, _BINS)
        yield Table(
            f"cosines of {worst.probe} over its {len(worst.cosines)} positions",
            (Column("from"), Column("to"), Column("positions", bar=True)),
            tuple(
                (float(low), float(high), int(count))
                for low, high, count in zip(edges, edges[1:], counts, strict=False)
            ),
            "cosines",
        )
    if fidelity.coverage:
        rows = [(each.what, each.how) for each in fidelity.coverage]
        columns = [Column("what"), Column("how")]
        yield Table("what the probes exercise", tuple(columns), tuple(rows), "coverage")
    if fidelity.compared:
        yield _errors(ranked)


def _probes(ranked: Sequence[Comparison], groups: Groups) -> Table:
    """All comparisons beside their limits; of seeded probes' lowest cosines there is none."""
    limits, pools = {}, False
    if len(groups) == 1:
        ((policy, group),) = groups.items()
        limits = {metric: group.limit(metric, policy) for metric in METRICS}
        pools = bool(group.parts(MEAN_COSINE))
    positions = (m for m in METRICS if m not in (FIRST_COSINE, MEAN_COSINE))
    metrics = [m for m in positions if any(m.of(c)[0] for c in ranked)]
    metrics.sort(key=lambda m: limits.get(m) is None)
    if pools:
        limits[MIN_COSINE] = None
    several = len({c.output for c in ranked}) > 1
    columns = [Column("probe"), *([Column("output")] if several else [])]
    for metric in metrics:
        side: Literal["above", "below"] = "above" if metric.least else "below"
        title = f"lowest {metric.label}" if pools and metric is MIN_COSINE else metric.label
        columns.append(Column(title, "", limits.get(metric), side))
        columns += [Column("at")] if metric is MIN_COSINE else []
    columns += [Column("zeros"), Column("max |x|")]
    rows = []
    for c in ranked:
        row: list[Cell] = [c.probe, *([c.output] if several else [])]
        for metric in metrics:
            value, at = metric.worst(c) if metric.of(c)[0] else (None, None)
            row += (value, at) if metric is MIN_COSINE else (value,)
        rows.append((*row, len(c.both_zero) or None, c.input_max or None))
    return Table("probes, the worst first", tuple(columns), tuple(rows), "probes")


def _errors(ranked: Sequence[Comparison]) -> Table:
    """Relative L2 over positions, but for position 0 of captured probes: statistics, histogram.

    Positions whose error is NaN or infinite are counted, and in no statistic.
    """
    heads = ("mean", "median", "p90", "p99", "max", "from", "to")
    return Table(
        "relative L2 over positions",
        (
            *map(Column, ("probe", "output", "positions", "undefined", *heads)),
            *(Column(f"bin {i}", bar=True) for i in range(1, _ERROR_BINS + 1)),
        ),
        tuple(_spread(c.rest) for c in ranked if c.live),
        "errors",
        listed=False,
    )


def _spread(c: Comparison) -> tuple[Cell, ...]:
    values = np.asarray(c.relative)
    errors = values[np.isfinite(values)]
    row = (c.probe, c.output, len(values), len(values) - len(errors))
    if not len(errors):
        return (*row, *(None,) * (7 + _ERROR_BINS))
    low, high = float(errors.min()), float(errors.max())
    # In units of the range: no sum overflows, and no range is too narrow for bins.
    parts = (errors - low) / (high - low or 1.0)
    counts, _ = np.histogram(parts, _ERROR_BINS, (0.0, 1.0))
    mean, quantiles = low + (high - low) * parts.mean(), np.quantile(errors, (0.5, 0.9, 0.99))
    statistics = (mean, *quantiles, high, low, high)
    return (*row, *map(rounded, statistics), *counts.tolist())


def _rank(c: Comparison) -> float:
    """Lowest cosine first, an undefined one before any number; what is zero comes last."""
    if not c.live:
        return 2.0
    return -2.0 if math.isnan(c.worst) else c.worst
