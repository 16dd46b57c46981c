"""Where a figure stepped, and what a memory holds: change points of its values over runs.

Binary segmentation (Scott and Knott, Biometrics 30, 1974): the best split of a series is the one
whose parts differ most in their ranks (Mann and Whitney, as in Pettitt, Applied Statistics 28,
1979), so that no outlier draws it. It is accepted if their medians differ by more than the noise
explains, the median absolute difference of neighbours. Without noise every change is a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from pytest_ane.mlprogram.groups import grouped
from pytest_ane.records.memory import Line, Memory, Run, Series

LEAST = 3
"""Runs on each side of a step in a series with noise: of one or two nobody can tell."""
_ERRORS = 4.0
"""Standard errors that the medians must differ by. Of 100 series of normal noise one at most has a
step then, for 6 to 100 runs; `tests/records/test_steps.py` counts them."""
_SMALL = 4.0
"""How much that grows for short series, whose noise is not known well: `1 + 4 / runs`."""
_NEIGHBOURS = 1.4826 / math.sqrt(2)
"""From the median absolute difference of two normal values to their standard deviation."""
_OF_MEDIANS = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal values."""
ROUNDING = 1e-6
"""A relative change below this is no step: other versions of numpy round otherwise."""
_AGREEMENTS = ("cosine", "contribution", "top1", "kendall", "finite")
"""Words in the names of figures that are 1 where nothing differs."""
_DECIBELS = "snr"


@dataclass(frozen=True)
class Step:
    """A change beyond noise: `at` is the first run after it, before and after are medians."""

    series: Series
    at: int
    before: float
    after: float

    @property
    def size(self) -> float:
        """As `change` has it."""
        return change(self.series.figure, self.before, self.after)


def change(figure: str, before: float, after: float) -> float:
    """How much a figure changed: 0 for not at all, 1 for beyond all measure.

    `|a - b| / (|a| + |b|)`, of figures that are 1 where nothing differs, such as cosines, of their
    distances to 1: from 0.999 to 0.95 is more than from 0.2 to 0.3. Signal-to-noise ratios in dB
    count as the errors that they stand for. NaN is 1.
    """
    if _is_agreement(figure):
        before, after = 1 - before, 1 - after
    elif _DECIBELS in figure:
        before, after = _ratio(before), _ratio(after)
    if not (math.isfinite(before) and math.isfinite(after)):
        return 0.0 if repr(before) == repr(after) else 1.0
    whole = abs(before) + abs(after)
    return abs(after - before) / whole if whole else 0.0


def rank(figure: str, size: float) -> tuple[float, bool, float, str]:
    """The order of changes, the largest first; of much the same size agreements, which say more."""
    return -round(size, 2), not _is_agreement(figure), -size, figure


def _is_agreement(figure: str) -> bool:
    return any(word in figure for word in _AGREEMENTS)


def _ratio(decibels: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float64(10.0) ** (-decibels / 20))


def steps_of(series: Series) -> list[Step]:
    """The steps of one series, in its order."""
    values = np.asarray(series.values, dtype=np.float64)
    starts = [0, *change_points(values), len(values)]
    medians = [_median(values[a:b]) for a, b in pairwise(starts)]
    made = map(Step, repeat(series), starts[1:-1], medians, medians[1:])
    return [step for step in made if step.size > ROUNDING]


def change_points(values: NDArray[np.float64]) -> list[int]:
    """Indices of the first values after each step, sorted; NaN and infinities are values too."""
    if len(values) < 2:
        return []
    if (noise := _noise(values)) == 0.0:
        before, after = values[:-1], values[1:]
        same = (before == after) | (np.isnan(before) & np.isnan(after))
        return [int(i) + 1 for i in np.flatnonzero(~same)]
    return sorted(_segmented(values, 0, noise))


def _noise(values: NDArray[np.float64]) -> float:
    """Standard deviation of the noise, a step or two left out; 0 where most runs are equal."""
    if len(finite := values[np.isfinite(values)]) < 2 * LEAST:
        return 0.0
    return float(np.median(np.abs(np.diff(finite)))) * _NEIGHBOURS


def _segmented(values: NDArray[np.float64], start: int, noise: float) -> Iterator[int]:
    count = len(values)
    if count < 2 * LEAST:
        return
    at = _best_split(values)
    left, right = values[:at], values[at:]
    shift = abs(_median(right) - _median(left))
    error = noise * _OF_MEDIANS * math.sqrt(1 / len(left) + 1 / len(right))
    if not shift <= _ERRORS * (1 + _SMALL / count) * error:
        yield start + at
        yield from _segmented(left, start, noise)
        yield from _segmented(right, start + at, noise)


def _best_split(values: NDArray[np.float64]) -> int:
    count = len(values)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(count)
    ranks[order] = np.arange(count) - (count - 1) / 2
    sizes = np.arange(LEAST, count - LEAST + 1)
    sums = np.abs(np.cumsum(ranks)[sizes - 1]) / np.sqrt(sizes * (count - sizes))
    return int(sizes[np.argmax(sums)])


def _median(values: Sequence[float] | NDArray[np.float64]) -> float:
    ordered = np.sort(np.asarray(values, dtype=np.float64))  # NaN stands last.
    middle = len(ordered) // 2
    if len(ordered) % 2 or not math.isfinite(ordered[middle]):
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


_WORDS = {
    "versions": "versions", "chip": "chip", "machine": "machine", "os": "system",
    "compute_units": "compute units", "arithmetic": "arithmetic",
}  # fmt: skip
"""Facts of a line, and what people call them."""


@dataclass(frozen=True)
class ModelSummary:
    """What a memory holds of one model, with the times of its first and last line, UTC."""

    model: str
    lines: int
    runs: int
    commits: int
    first: str
    last: str
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """Steps of one subject in one run, the largest first; `changed` is what else differs."""

    subject: str
    run: Run
    before: Run
    title: str
    steps: tuple[Step, ...]
    changed: tuple[str, ...]


def summaries(memory: Memory, *, gate: str = "", shards: str = "all") -> list[ModelSummary]:
    """One for each model with lines of this gate and these shards; arguments as of `turns`."""
    asked = memory.of(gate=gate, shards=shards)
    of = grouped((line.record.subject.partition(":")[0], line) for line in asked)
    return [
        ModelSummary(
            model=model,
            lines=len(lines),
            runs=len(places := sorted({line.run for line in lines})),
            commits=len({memory.runs[place].commit for place in places} - {""}),
            first=min(memory.runs[place].time for place in places),
            last=max(memory.runs[place].time for place in places),
            machines=tuple(sorted({", ".join(filter(None, (x.facts["chip"], x.facts["os"])))
                                   for x in lines})),
        )
        for model, lines in sorted(of.items())
    ]  # fmt: skip


def turns(memory: Memory, *, figure: str = "", gate: str = "", shards: str = "all") -> list[Turn]:
    """Steps by subject and run, those with the largest step first; as of `Memory.series`."""
    series = memory.series(figure, gate=gate, shards=shards, changing=True)
    every = [step for one in series for step in steps_of(one)]
    every.sort(key=lambda step: (*rank(step.series.figure, step.size), step.series.subject))
    found = grouped(((step.series.subject, step.series.runs[step.at]), step) for step in every)
    return [
        Turn(
            subject,
            run := memory.runs[place],
            memory.runs[group[0].series.runs[group[0].at - 1]],
            memory.commits.titles.get(run.commit, ""),
            tuple(group),
            tuple(_changed(*(memory.lines[group[0].series.ids[group[0].at - i]] for i in (1, 0)))),
        )
        for (subject, place), group in found.items()
    ]


def _changed(before: Line, after: Line) -> Iterator[str]:
    if before.record.artifact != after.record.artifact:
        yield "package"
    if before.record.question != after.record.question:
        yield "question"
    yield from (word for name, word in _WORDS.items() if before.facts[name] != after.facts[name])
