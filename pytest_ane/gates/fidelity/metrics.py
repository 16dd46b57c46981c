"""Metrics of fidelity: values of a comparison, and which comparisons each is held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

import numpy as np

from pytest_ane.gates.fidelity.records import Comparison
from pytest_ane.manifest.policy import OutputPolicy

Series = tuple[Sequence[float], Sequence[int]]
"""Values of a comparison, and the position (or first channel) of each."""


@dataclass(frozen=True)
class Metric:
    """One number of how close an output is, and how it is held against a threshold.

    Attributes:
        key: the threshold in `policy.fidelity`.
        figure: name of the worst value over all probes.
        label: how people call it; also the head of its column.
        of: values of a comparison.
        part: which positions count: all, or those besides position 0 of captured probes, or it.
        least: whether values must reach the threshold; else they may not exceed it.
        step: to what a threshold that would have passed is rounded; significant digits if None.
        worth: beyond this value no threshold is offered: the shard is wrong, not the threshold.
    """

    key: str
    figure: str
    label: str
    of: Callable[[Comparison], Series]
    part: Literal["all", "rest", "first"] = "rest"
    least: bool = True
    step: float | None = 1e-4
    worth: float | None = 0.9

    def limit(self, limits: OutputPolicy) -> float | None:
        """Its threshold, None where there is none."""
        value: float | None = getattr(limits, self.key.replace("-", "_"))
        return value

    def of_part(self, comparisons: Iterable[Comparison]) -> list[Comparison]:
        """The live parts of comparisons that it concerns."""
        if self.part == "all":
            return [c for c in comparisons if c.live]
        parts = (c.rest if self.part == "rest" else c.first for c in comparisons if c.live)
        return [c for c in parts if c.live]

    def worst(self, c: Comparison) -> tuple[float, int]:
        """The worst value of a comparison and its position; NaN is worse than any number."""
        values, positions = self.of(c)
        at = int(np.argmin(values) if self.least else np.argmax(values))
        return float(values[at]), positions[at]

    def keeps(self, value: float, limit: float) -> bool:
        """Whether a value keeps a limit; NaN keeps none."""
        return value >= limit if self.least else value <= limit

    def rank(self, c: Comparison) -> float:
        """Lowest for the worst."""
        value, _ = self.worst(c)
        return -math.inf if math.isnan(value) else value if self.least else -value

    def passing(self, value: float) -> str:
        """The strictest threshold of a few digits that a value keeps; empty beyond `worth`."""
        if not math.isfinite(value):
            return f"no {self.key} would have passed"
        if self.worth is not None and not self.keeps(value, self.worth):
            return ""
        step = self.step or 10.0 ** (math.floor(math.log10(value)) - 3 if value > 0 else 0)
        rounded = (math.floor if self.least else math.ceil)(value / step) * step
        return f"{self.key} = {rounded:g} would have passed"


COSINES = attrgetter("cosines", "positions")
CONTRIBUTIONS = attrgetter("contributions", "contributing")
MIN_COSINE = Metric("min-cosine", "cosine.min", "cosine", COSINES)
MEAN_COSINE = Metric("min-cosine", "cosine.seeded", "mean cosine", COSINES)
"""Of seeded probes where there is an error budget: see `Group`."""
FIRST_COSINE = Metric("min-cosine", "cosine.first.min", "cosine at position 0", COSINES, "first",
                      worth=math.inf)  # fmt: skip
"""No threshold of its own is offered: it follows from `min-cosine`."""
MIN_CONTRIBUTION = Metric("min-contribution", "contribution.min", "contribution", CONTRIBUTIONS)
MAX_RELATIVE_L2 = Metric(
    "max-relative-l2", "relative_l2.max", "relative L2", attrgetter("relative", "positions"),
    least=False, step=None, worth=0.5,
)  # fmt: skip
METRICS = (
    MIN_COSINE,
    MEAN_COSINE,
    FIRST_COSINE,
    MIN_CONTRIBUTION,
    MAX_RELATIVE_L2,
)  # fmt: skip
"""Every metric, in the order of the columns of reports."""


def greatest_l2(cosine: float) -> float:
    """The relative L2 error that a least cosine allows where none is set.

    Vectors of one length at this angle are sqrt(2 - 2 cosine) apart, and they may differ as much in
    their lengths.
    """
    return 2 * math.sqrt(1 - cosine)


def threshold(metric: Metric, limits: OutputPolicy, *, implied: bool) -> float | None:
    """A metric's threshold, where there is something to hold against it.

    Args:
        metric: one of `METRICS`.
        limits: of the output.
        implied: whether two that are not set follow from a cosine. That of position 0 always does:
            the attention sink magnifies errors there, so 1 - cosine may be three times as much.
    """
    limit, cosine = metric.limit(limits), limits.min_cosine
    if metric is FIRST_COSINE and cosine is not None:
        return max(round(1 - 3 * (1 - cosine), 4), -1.0)
    if limit is not None or cosine is None or not implied:
        return limit
    if metric is MAX_RELATIVE_L2:
        return round(greatest_l2(cosine), 4)
    if metric is MIN_CONTRIBUTION:
        return max(round(2 * cosine * abs(cosine) - 1, 4), -1.0)
    return None


def values_of(comparisons: Iterable[Comparison], of: Callable[[Comparison], Series]) -> list[float]:
    """One metric's values of all comparisons."""
    return [value for c in comparisons for value in of(c)[0]]


@dataclass(frozen=True)
class Group:
    """Comparisons that are judged by the same thresholds.

    Attributes:
        comparisons: of the outputs with these thresholds.
        pool: whether `min-cosine` is held against the mean of seeded probes' positions, not against
            each. An error budget sees each better, and a minimum over random positions hangs on the
            seed: 15 of 600 right blocks were red for it. Without a budget nothing else sees one
            position.
        implied: whether two thresholds that are not set follow from a cosine.
    """

    comparisons: tuple[Comparison, ...]
    pool: bool
    implied: bool = True

    def parts(self, metric: Metric) -> list[Comparison]:
        """What a metric is held against."""
        parts = metric.of_part(self.comparisons)
        if metric is MIN_COSINE and self.pool:
            return [c for c in parts if c.kind in _REAL]
        if metric is not MEAN_COSINE:
            return parts
        pools: dict[tuple[bool, str], list[Comparison]] = {}
        for c in parts if self.pool else ():
            if c.kind not in (*_REAL, "unit-norm"):
                pools.setdefault((c.kind == "extreme", c.output), []).append(c)
        return list(map(_pooled, pools.values()))

    def limit(self, metric: Metric, limits: OutputPolicy) -> float | None:
        """A metric's threshold; for an own package two that are not set follow from a cosine.

        A cosine sees neither the size of an output nor what is small beside its residual path. The
        contribution's angle may be twice the one that `min-cosine` allows.
        """
        limit = threshold(metric, limits, implied=self.implied)
        if metric is MIN_CONTRIBUTION and metric.limit(limits) is None:
            return limit if any(metric.of(c)[0] for c in self.parts(metric)) else None
        return limit


_REAL = ("captured", "golden")
"""Kinds of what the model really meets. Of others `extreme` has a mean by itself, for there the
residual path hides everything, and rows of norm 1 none: theirs is a thousandth of a real one's."""


def _pooled(comparisons: Sequence[Comparison]) -> Comparison:
    """Seeded probes as one, whose cosine is the mean over all positions."""
    worst = min(comparisons, key=MIN_COSINE.rank)
    mean = float(np.mean([x for c in comparisons for x in c.cosines]))
    kind = "extreme" if worst.kind == "extreme" else "seeded"
    count = len({c.probe for c in comparisons})
    return replace(
        worst.at(lambda position: position == worst.positions[0]),
        probe=f"{count} {kind} probe{'' if count == 1 else 's'}",
        cosines=(mean,),
    )
