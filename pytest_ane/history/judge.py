"""Today's policy over old measurements: since which run would a figure have been red?

Only limits on figures count that a policy sets whatever was measured (`Gate.limits`). Findings
without a figure, such as an operation off the ANE, leave nothing to judge in a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Bound, Limits
from pytest_ane.history.memory import Memory, Series, matches
from pytest_ane.history.order import Run
from pytest_ane.manifest import Manifest


@dataclass(frozen=True)
class Red:
    """Runs, one after another, in which a figure is beyond today's limit.

    Attributes:
        series: the figure over all runs.
        bound: today's limit.
        first: the first of these runs, as an index into the series.
        last: the last one.
        since: the first run.
        until: the last run; None where all later ones are red too.
    """

    series: Series
    bound: Bound
    first: int
    last: int
    since: Run
    until: Run | None

    @property
    def value(self) -> float:
        """In the first of these runs."""
        return self.series.values[self.first]


@dataclass(frozen=True)
class Judged:
    """Today's policy over a memory.

    Attributes:
        red: what would be red still, then what would have been, each by its first run.
        figures: how many series were judged.
        subjects: shards and models of the memory that the manifest has no more, or not yet.
        silent: gates with lines and without any limit on a figure.
    """

    red: tuple[Red, ...]
    figures: int
    subjects: tuple[str, ...]
    silent: tuple[str, ...]


def judge(memory: Memory, manifest: Manifest, *, gate: str = "", shards: str = "all") -> Judged:
    """Judge all figures of a memory by the manifest's policy; others as of `Memory.series`."""
    limits = dict(_limits(manifest))
    there = memory.ask(
        "select distinct subject, gate from lines where $1 = '' or gate = $1 order by all", [gate]
    )
    asked = [(subject, name) for subject, name in there if matches(subject, shards)]
    known = {subject for subject, _ in limits}
    names = sorted({figure for pair in asked for figure in limits.get(pair, {})})
    series = memory.series(names, gate=gate, shards=shards) if names else []
    judged = [
        (one, bound) for one in series
        if (bound := limits.get((one.subject, one.gate), {}).get(one.figure)) is not None
    ]  # fmt: skip
    red = [red for one, bound in judged for red in _red(memory, one, bound)]
    silent = {name for _, name in asked} - {pair[1] for pair in asked if limits.get(pair)}
    return Judged(
        red=tuple(sorted(red, key=lambda r: (r.until is not None, r.series.runs[r.first]))),
        figures=len(judged),
        subjects=tuple(dict.fromkeys(subject for subject, _ in asked if subject not in known)),
        silent=tuple(sorted(silent)),
    )


def _limits(manifest: Manifest) -> Iterator[tuple[tuple[str, str], Limits]]:
    """Of each subject and gate."""
    scopes: dict[str, tuple[Subject, ...]] = {"shard": manifest.shards, "model": manifest.models}
    for gate in GATES.values():
        for scope, subjects in scopes.items():
            # A benchmark times shards and whole models.
            for subject in subjects if gate.scope == scope or gate.marker == "bench" else ():
                policy = gate.policy(subject.policy)
                yield (subject.qualified, gate.name), gate.limits(policy, subject)


def _red(memory: Memory, series: Series, bound: Bound) -> Iterator[Red]:
    """Groups of runs that are red."""
    passes = [bound.passes(value) for value in series.values]
    for good, group in groupby(range(len(passes)), key=lambda i: passes[i]):
        if good:
            continue
        first, *more = group
        last = more[-1] if more else first
        runs = [memory.runs[series.runs[i]] for i in (first, last)]
        until = runs[1] if last + 1 < len(passes) else None
        yield Red(series, bound, first, last, runs[0], until)
