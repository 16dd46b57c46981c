"""The memory of many runs: a folder with a file for each, and their figures in git's order.

    memory = Memory(Path("history"))
    [series] = memory.series("cosine.min", gate="fidelity", shards="smollm2:L11")
    series.values                             # (0.9981, 0.9981, 0.4017)
    memory.runs[series.runs[2]].label         # '1a2b3c4d5'

A record of a run is a measurement, never a verdict: it holds figures without limits, so that any
policy can judge it. Runs stand in the order of git's history where git knows their commits, else by
time. Files of others may be damaged: what cannot be read is skipped, and named.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytest_ane.gates.words import TIMED
from pytest_ane.manifest.ids import as_range, nearest
from pytest_ane.mlprogram.errors import EvidenceError, HistoryError
from pytest_ane.records.record import Record, parse, read_file
from pytest_ane.records.run import MOST_BYTES, SUFFIX, Facts, facts_of, git

T = TypeVar("T")
FOLDER = "history"
"""The folder's name beside the manifest."""
_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_STARTED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")
_VERSIONS = ("pytest-ane", "numpy", "coremltools", "compiler", "python")
FACTS = ("chip", "machine", "os", "compute_units", "backend", "arithmetic", "versions")
"""Where a figure comes from, besides commit, package and question."""


@dataclass(frozen=True)
class Skipped:
    """A line, from 1, or a whole file (`number` 0) that was not read; `why` ends a sentence."""

    file: str
    number: int
    why: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.number}" if self.number else self.file
        return f"{where} {self.why}"


@dataclass(frozen=True)
class Run:
    """A run of pytest at one commit, which is empty outside of git; `known` where git knows it."""

    id: str
    commit: str
    clean: bool
    started: str
    lines: int
    known: bool = False

    @property
    def time(self) -> str:
        """Of its start, for people: `2026-11-21 10:00:00`."""
        return self.started[:19].replace("T", " ")

    @property
    def label(self) -> str:
        """`1a2b3c4d5`, with a `+` where files were changed; the run's id outside of git."""
        if not self.commit:
            return f"run {self.id[:8]}"
        return f"{self.commit[:9]}{'' if self.clean else '+'}"


class Place(NamedTuple):
    """Where figures come from: a backend if anything ran, a machine of benchmarks alone."""

    backend: str
    machine: str

    @classmethod
    def of(cls, gate: str, facts: Mapping[str, str]) -> Place:
        """By facts: `backend`, `machine`, `chip`, `compute_units`."""
        names = ("machine", "chip", "compute_units")
        machine = "|".join(facts.get(name) or "" for name in names) if gate in TIMED else ""
        return cls(facts.get("backend") or "", machine)

    def compares(self, other: Place) -> bool:
        """Whether figures of both may be compared."""
        same = not self.backend or not other.backend or self.backend == other.backend
        return same and self.machine == other.machine


def facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """`FACTS` by an environment: system and build are one, and versions one text."""
    of = {key: str(value) for key, value in environment.items()}
    build = f" ({of['os_build']})" if of.get("os_build") else ""
    known = {name: of.get(name, "") for name in FACTS}
    known["machine"] = machine_of(of)
    known["os"] = f"{of['os']}{build}" if of.get("os") else of.get("system", "")
    known["versions"] = ", ".join(f"{name} {of[name]}" for name in _VERSIONS if name in of)
    return known


def machine_of(facts: Mapping[str, Any]) -> str:
    """A machine by provenance: the model of a Mac, else cores and threads."""
    cores = ", ".join(str(facts[key]) for key in ("cores", "threads") if key in facts)
    return str(facts.get("mac") or facts.get("model") or cores)


@dataclass(frozen=True)
class Line:
    """A record of one run, by their places in the memory, and where it was made, as of `facts`."""

    id: int
    run: int
    record: Record
    facts: Mapping[str, str]

    @property
    def asked(self) -> tuple[str, str, str]:
        """Gate, subject and test."""
        return self.record.gate, self.record.subject, self.record.part

    @property
    def where(self) -> tuple[str, ...]:
        """What makes a series: of figures of a device or a clock, the machine as well."""
        if (backend := self.facts["backend"]) in ("", "cpu") and self.record.gate not in TIMED:
            return (backend,)
        return (backend, *(self.facts[name] for name in ("machine", "chip", "os", "compute_units")))

    @property
    def numbers(self) -> Iterator[tuple[str, float]]:
        """Figures that are numbers; NaN and infinities are, other texts are not."""
        for name, value in self.record.figures.items():
            if value in ("NaN", "Infinity", "-Infinity") or type(value) in (int, float):
                yield name, float(value)


@dataclass(frozen=True)
class Series:
    """A figure of a subject over runs; `ids` and `runs` are places in `Memory.lines` and `runs`."""

    gate: str
    subject: str
    test: str
    figure: str
    backend: str
    ids: tuple[int, ...]
    runs: tuple[int, ...]
    values: tuple[float, ...]


class Memory:
    """A folder's records, runs in git's order, else by time; `HistoryError` if none is read."""

    def __init__(self, folder: Path, models: Sequence[str] = ()) -> None:
        self.folder = folder
        self.skipped: list[Skipped] = []
        # A run may have two files here: its own, and a brief one.
        found = {run.id: (run, records) for run, records in self._read(models)}
        self.commits = Commits(folder, [run.commit for run, _ in found.values()])
        by_time = sorted((run for run, _ in found.values()), key=lambda run: run.started)
        self.runs = ordered(by_time, self.commits)
        pairs = ((at, r) for at, run in enumerate(self.runs) for r in found[run.id][1])
        self.lines = [
            Line(number, at, record, facts(record.environment))
            for number, (at, record) in enumerate(pairs)
        ]
        if not self.runs:
            skipped = f"; {len(self.skipped)} lines were skipped" if self.skipped else ""
            raise HistoryError(
                f"{folder} holds no record of a run{skipped}; write some with: pytest "
                f"--ane-shards=all -m gate --ane-report={folder.name}/"
            )

    def _read(self, models: Sequence[str]) -> Iterator[tuple[Run, list[Record]]]:
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                first, *lines = (read_file(path, MOST_BYTES) or b"").split(b"\n")
            except EvidenceError as error:
                why = str(error).removeprefix(f"{path} ").removesuffix(".")
                self.skipped.append(Skipped(path.name, 0, why))
                continue
            if (known := self._line(path, 1, first, _facts)) is None:
                continue
            found = (
                self._line(path, number, line, lambda line: Record.from_data(parse(line)))
                for number, line in enumerate(lines, 2)
                if line and not line.startswith(b'{"end":')
            )
            kept = [
                record
                for record in found
                if record is not None and record.gate and record.subject and record.figures
                and (not models or record.subject.partition(":")[0] in models)
            ]  # fmt: skip
            if kept:
                started = known.started.removesuffix("Z")
                yield Run(known.id, known.commit, known.clean, started, len(kept)), kept

    def _line(self, path: Path, number: int, line: bytes, read: Callable[[bytes], T]) -> T | None:
        try:
            return read(line)
        except EvidenceError:
            self.skipped.append(Skipped(path.name, number, "is damaged"))
            return None

    def of(self, *, gate: str = "", shards: str = "all") -> list[Line]:
        """Lines of a gate and a selection, as for `series`."""
        subjects = {line.record.subject for line in self.lines}
        asked = {subject for subject in subjects if matches(subject, shards)}
        return [
            line
            for line in self.lines
            if line.record.subject in asked and gate in ("", line.record.gate)
        ]

    def check(self, *, gate: str = "", shards: str = "all") -> None:
        """Raise `HistoryError` unless gate and each term of a selection name lines, and both do."""
        pairs = sorted({(line.record.subject, line.record.gate) for line in self.lines})
        gates = sorted({of for _, of in pairs})
        if gate and gate not in gates:
            raise HistoryError(
                f"--gate: {self.folder} has no line of the gate {gate!r}; {nearest(gate, gates)}."
            )
        for term in _terms(shards) or [""]:
            if not any(matches(subject, term) for subject, _ in pairs):
                names = [s if ":" in term else s.rpartition(":")[2] for s, _ in pairs]
                raise HistoryError(
                    f"--shards: {term!r} matches no shard or model in {self.folder}; "
                    f"{nearest(term, names)}."
                )
        if gate and not self.of(gate=gate, shards=shards):
            raise HistoryError(
                f"No line in {self.folder} is of both --gate {gate} and --shards {shards}; leave "
                "out one of them."
            )

    def series(
        self, figures: str | Sequence[str] = (), *, gate: str = "", shards: str = "all",
        changing: bool = False,
    ) -> list[Series]:  # fmt: skip
        """Figures by name, of shards as for `--ane-shards`; `changing` ones have several values."""
        names = {figures} if isinstance(figures, str) and figures else {*figures}
        found: dict[tuple[Any, ...], list[tuple[int, int, float]]] = {}
        for line in self.of(gate=gate, shards=shards):
            of, subject, test = line.asked
            for name, value in line.numbers:
                if not names or name in names:
                    key = subject, of, test, name, line.where
                    found.setdefault(key, []).append((line.id, line.run, value))
        made = []
        for (subject, of, test, name, where), points in sorted(found.items(), key=lambda f: f[0]):
            ids, runs, values = zip(*points, strict=True)
            if not changing or len(set(map(repr, values))) > 1:
                made.append(Series(of, subject, test, name, where[0], ids, runs, values))
        return made

    def names(self, *, gate: str = "", shards: str = "all") -> list[str]:
        """Names of figures; arguments as of `series`."""
        return sorted({name for line in self.of(gate=gate, shards=shards)
                       for name in line.record.figures})  # fmt: skip


def _facts(line: bytes) -> Facts:
    known = facts_of(line)
    if not (known.id and _STARTED.fullmatch(known.started)):
        raise EvidenceError("is of no run")
    return known


def matches(subject: str, shards: str) -> bool:
    """Whether a selection such as `L00-L04,head*`, `smollm2:L01` or `all` names a subject."""
    return any(fnmatchcase(subject, pattern) for pattern in _patterns(shards))


def _terms(shards: str) -> list[str]:
    return shards.replace(",", " ").split()


def _patterns(shards: str) -> Iterator[str]:
    for term in _terms(shards):
        if term == "all":
            yield "*"
            continue
        model, _, name = term.rpartition(":")
        try:
            names = as_range(name) or [name]
        except ValueError as error:
            raise HistoryError(f"--shards={shards}: {error}.") from None
        for each in names:
            each = each.replace("[", "[[]")  # A function of a package: `decoder[verify4]`.
            yield f"{model or '*'}:{each}"
        if not model:
            yield term


class Commits:
    """What git knows of full ids of commits, in a folder of the checkout, if there is one."""

    def __init__(self, folder: Path, ids: Iterable[str]) -> None:
        self._folder = folder
        self._ids = {commit for commit in ids if _ID.fullmatch(commit)}

    def _git(self, ids: Iterable[str], *arguments: str) -> list[str]:
        """Lines that git prints of commits; without any it would print those of HEAD."""
        given = "\n".join(sorted(ids))
        return git(self._folder, *arguments, given=given).splitlines() if given else []

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each commit that git knows: parents come first."""
        form = "--batch-check=%(objectname) %(objecttype)"
        lines = (line.split() for line in self._git(self._ids, "cat-file", form))
        known = {commit for commit, kind in lines if kind == "commit"}
        every = self._git(known, "rev-list", "--topo-order", "--reverse", "--stdin")
        return {commit: place for place, commit in enumerate(c for c in every if c in known)}

    @cached_property
    def titles(self) -> dict[str, str]:
        """The first line of each commit's message."""
        form = ("--no-walk=unsorted", "--format=%H %s", "--stdin")
        lines = (line.partition(" ") for line in self._git(self.places, "log", *form))
        return {commit: title for commit, _, title in lines}

    def find(self, name: str) -> str:
        """The commit of a branch, a tag or another name that git knows; empty for none."""
        if not name or name.startswith("-"):
            return ""
        return git(
            self._folder, "rev-parse", "--verify", "--quiet", "--end-of-options",
            f"{name}^{{commit}}",
        ).strip()  # fmt: skip


def ordered(runs: Sequence[Run], commits: Commits) -> tuple[Run, ...]:
    """Runs, given by time, in git's order; one that git does not know after those older."""
    places = commits.places
    known = sorted((r for r in runs if r.commit in places), key=lambda r: places[r.commit])
    latest = [*accumulate((run.started for run in known), max)]
    keyed = [((i + 1, 0), replace(run, known=True)) for i, run in enumerate(known)]
    others = (run for run in runs if run.commit not in places)
    keyed += [((bisect_right(latest, run.started), i + 1), run) for i, run in enumerate(others)]
    return tuple(run for _, run in sorted(keyed, key=lambda pair: pair[0]))
