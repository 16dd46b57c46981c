"""What many runs tell: the run before, a figure's course, today's policy over them, and two sides.

`judge` looks at limits on figures alone that a policy sets whatever was measured (`Gate.limits`):
findings without a figure, such as an operation off the ANE, leave nothing to judge.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Bound, Limits
from pytest_ane.manifest import Manifest
from pytest_ane.mlprogram.errors import HistoryError
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.records.memory import FACTS, Line, Memory, Place, Run, Series, matches
from pytest_ane.records.steps import ROUNDING, change, rank, steps_of, turns

Asked: TypeAlias = tuple[str, str, str]
"""A gate, its subject and the test, which is empty where a gate has one."""


@dataclass(frozen=True)
class Earlier:
    """Figures of a run that may be compared; its label is of the commit, or of the run."""

    label: str
    time: str
    commit: str
    figures: Mapping[Asked, Mapping[str, float]] = field(default_factory=dict)


_BACK = 20
"""Runs in which a measurement is looked for."""
_MOST_STEPS = 6
"""Steps whose figures a report draws."""
_DRAWN = (("behaviour", "kl.mean"), ("throughput", "tok_s"))
"""Figures that it draws in any case."""


class Point(NamedTuple):
    """A figure in one run."""

    label: str
    time: str
    value: float


def last_before(memory: Memory, run: str, places: Mapping[Asked, Place]) -> Earlier | None:
    """The newest run before one, or before this; what it lacks is of the runs before that."""
    at = next((i for i, one in enumerate(memory.runs) if one.id == run), len(memory.runs))
    figures: dict[Asked, dict[str, float]] = {}
    last: Run | None = None
    for place in reversed(range(max(0, at - _BACK), at)):
        before = memory.runs[place]
        found: dict[Asked, dict[str, float]] = {}
        for asked, line in {one.asked: one for one in memory.lines if one.run == place}.items():
            here = places.get(asked)
            if here is not None and here.compares(Place.of(asked[0], line.facts)):
                found[asked] = dict(line.numbers)
        figures = found | figures
        last = last or (before if found else None)
    return Earlier(last.label, last.time, last.commit, figures) if last else None


@dataclass(frozen=True)
class Course:
    """One figure over runs; `step` is the index of the first point after its last step, if any."""

    gate: str
    subject: str
    test: str
    figure: str
    backend: str
    points: tuple[Point, ...]
    step: int | None


def courses(memory: Memory) -> list[Course]:
    """What a report draws: the largest steps, then KL and tokens a second."""
    found = [turn.steps[0].series for turn in turns(memory)[:_MOST_STEPS]]
    for gate, figure in _DRAWN:
        found += [one for one in memory.series(figure, gate=gate) if ":" not in one.subject]
    made = []
    for of in (one for one in dict.fromkeys(found) if len(one.values) > 1):
        runs = (memory.runs[place] for place in of.runs)
        points = tuple(Point(r.label, r.time, v) for r, v in zip(runs, of.values, strict=True))
        step = next((step.at for step in reversed(steps_of(of))), None)
        made.append(Course(of.gate, of.subject, of.test, of.figure, of.backend, points, step))
    return made


@dataclass(frozen=True)
class Red:
    """Runs in a row beyond today's limit; `until` is None where all later ones are red."""

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
    """What is red by today's policy, then what was, each since its first run; and the rest."""

    red: tuple[Red, ...]
    figures: int
    subjects: tuple[str, ...]
    silent: tuple[str, ...]


def judge(memory: Memory, manifest: Manifest, *, gate: str = "", shards: str = "all") -> Judged:
    """Judge all figures of a memory by the manifest's policy; others as of `Memory.series`."""
    limits = dict(_limits(manifest))
    lines = memory.of(gate=gate, shards=shards)
    asked = sorted({(line.record.subject, line.record.gate) for line in lines})
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
    scopes: dict[str, tuple[Subject, ...]] = {"shard": manifest.shards, "model": manifest.models}
    for gate in GATES.values():
        for scope, subjects in scopes.items():
            # A benchmark times shards and whole models.
            for subject in subjects if gate.scope == scope or gate.marker == "bench" else ():
                policy = gate.policy(subject.policy)
                yield (subject.qualified, gate.name), gate.limits(policy, subject)


def _red(memory: Memory, series: Series, bound: Bound) -> Iterator[Red]:
    passes = [bound.passes(value) for value in series.values]
    for good, group in groupby(range(len(passes)), key=lambda i: passes[i]):
        if good:
            continue
        first, *more = group
        last = more[-1] if more else first
        runs = [memory.runs[series.runs[i]] for i in (first, last)]
        until = runs[1] if last + 1 < len(passes) else None
        yield Red(series, bound, first, last, runs[0], until)


_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_MOST = 4
"""Values of a fact that are named; others are counted."""


class Difference(NamedTuple):
    """A figure that differs between two sides: numbers, or texts; its size as of `steps.change`."""

    subject: str
    gate: str
    test: str
    figure: str
    before: float | str
    after: float | str
    size: float


@dataclass(frozen=True)
class Comparison:
    """Two sides, such as `run 1a2b` and `Apple M4`, measurement by measurement.

    `facts` are what differs besides figures; `packages` and `questions` count measurements of
    others; `only` those that one side alone has; those of two backends are counted `apart`.
    """

    sides: tuple[str, str]
    facts: tuple[tuple[str, str, str], ...]
    packages: int
    questions: int
    differences: tuple[Difference, ...]
    same: int
    only: tuple[int, int]
    apart: tuple[tuple[str, str, int], ...]


def compare(memory: Memory, a: str, b: str, *, gate: str = "", shards: str = "all") -> Comparison:
    """Hold two sides against each other: runs, commits, names of git's or parts of machines'.

    Of what a side has several times the newest counts, of the same package and question on both.
    `HistoryError` where a word means nothing here, or several things, or both select the same
    lines.
    """
    (left, ours), (right, theirs) = (_side(memory, word) for word in (a, b))
    pairs, apart, only = list[_Pair](), Counter[tuple[str, str]](), [0, 0]
    for key in sorted({*ours, *theirs}):
        if not matches(key[0], shards) or gate not in ("", key[1]):
            continue
        if key not in ours or key not in theirs:
            only[int(key not in ours)] += 1
        elif (pair := _pair(ours[key], theirs[key])) is None:
            backends = (side[key][0].facts["backend"] or "none" for side in (ours, theirs))
            apart[next(backends), next(backends)] += 1
        else:
            pairs.append((key, *pair))
    if not (pairs or apart or any(only)):
        raise HistoryError(
            f"Neither {left} nor {right} has a line of this gate and these shards; leave out "
            "--gate or --shards."
        )
    if pairs and not apart and all(x.id == y.id for _, x, y in pairs):
        raise HistoryError(
            f"history diff: {a!r} ({left}) and {b!r} ({right}) select the same lines; name two "
            "runs, commits, machines or systems that differ."
        )
    differences, same = [], 0
    for key, x, y in pairs:
        then, now = (dict(line.record.figures) | dict(line.numbers) for line in (x, y))
        for name in then.keys() & now.keys():
            a, b = then[name], now[name]
            text = isinstance(a, str) or isinstance(b, str)
            if (size := float(a != b) if text else change(name, float(a), float(b))) > ROUNDING:
                differences.append(Difference(*key, name, a, b, size))
            else:
                same += 1
    return Comparison(
        sides=(left, right),
        facts=tuple(_facts(memory, pairs)),
        packages=sum(x.record.artifact != y.record.artifact for _, x, y in pairs),
        questions=sum(x.record.question != y.record.question for _, x, y in pairs),
        differences=tuple(sorted(differences, key=lambda d: (*rank(d.figure, d.size), d[:4]))),
        same=same,
        only=(only[0], only[1]),
        apart=tuple((x, y, count) for (x, y), count in apart.items()),
    )


_Key: TypeAlias = tuple[str, str, str]
_Pair: TypeAlias = tuple[_Key, Line, Line]


def _side(memory: Memory, word: str) -> tuple[str, dict[_Key, list[Line]]]:
    label, selects = _meaning(memory, word)
    asked = ((line.asked, line) for line in filter(selects, reversed(memory.lines)))
    return label, grouped(((subject, gate, test), line) for (gate, subject, test), line in asked)


def _meaning(memory: Memory, word: str) -> tuple[str, Callable[[Line], bool]]:
    runs = sorted({run.id for run in memory.runs if run.id.startswith(word)})
    commits = sorted({run.commit for run in memory.runs if run.commit.startswith(word)})
    prefix = _PREFIX.fullmatch(word)
    if (prefix and runs) or word in runs:
        label = f"run {_one(word, 'runs', runs)[:8]}"
        return label, lambda line: memory.runs[line.run].id == runs[0]
    if not (prefix and commits):
        name = memory.commits.find(word)
        commits = [name] if any(run.commit == name for run in memory.runs if name) else []
    if commits:
        label = f"commit {_one(word, 'commits', commits)[:9]}"
        return label, lambda line: memory.runs[line.run].commit == commits[0]
    part = word.casefold()
    places = {line.facts[name] for line in memory.lines for name in _PLACES}
    if names := sorted(name for name in places if word and part in name.casefold()):
        return _listed(names), lambda line: any(line.facts[x] in names for x in _PLACES)
    newest = memory.runs[-1]
    of = f", of commit {newest.label}" if newest.commit else ""
    raise HistoryError(
        f"{word!r} is no run, no commit with a run and no part of a machine's name in "
        f"{memory.folder}; the newest run is {newest.id[:8]}{of}."
    )


_PLACES = ("chip", "machine", "os")


def _one(word: str, what: str, found: Sequence[str]) -> str:
    if len(found) > 1:
        some = ", ".join(each[:12] for each in found[:_MOST])
        raise HistoryError(f"{word} stands for {len(found)} {what}: {some}; give more of it.")
    return found[0]


def _pair(ours: Sequence[Line], theirs: Sequence[Line]) -> tuple[Line, Line] | None:
    for count in (3, 2, 1):
        newest = {_alike(line)[:count]: line for line in reversed(theirs)}
        for line in ours:
            if (other := newest.get(_alike(line)[:count])) is not None:
                return line, other
    return None


def _alike(line: Line) -> tuple[str, ...]:
    return line.facts["backend"], line.record.artifact, line.record.question


def _facts(memory: Memory, pairs: Sequence[_Pair]) -> Iterator[tuple[str, str, str]]:
    facts = [
        [{**line.facts, "commit": memory.runs[line.run].commit} for line in pair[1:]]
        for pair in pairs
    ]
    for name in ("commit", *FACTS):
        before, after = (sorted({of[side][name] for of in facts}) for side in (0, 1))
        if before != after:
            yield name, _listed(before), _listed(after)


def _listed(values: Sequence[str]) -> str:
    values = [value or "none" for value in values]
    more = f" and {len(values) - _MOST} more" if len(values) > _MOST else ""
    return ", ".join(values[:_MOST]) + more
