"""The verdict: a policy applied to a measurement. Always derived, never stored as truth.

It carries structure alone: figures beside their limits, findings with remedies, tables. Every
word that people read of it is made in `pytest_ane.report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from pytest_ane.manifest.base import Record, kebab

Status = Literal["passed", "failed", "unproven"]
STATUSES: tuple[Status, ...] = ("failed", "unproven", "passed")
"""The worst first."""
Severity = Literal["failed", "unproven", "warned", "note"]
Side = Literal["above", "below"]
Cell: TypeAlias = float | int | str | None
CAUSE = "are the cause of the error"
"""The kind of the finding that names a cause."""
RATIO = "x smaller than fp16"
"""Unit of a size's ratio; below 1 it is said to be larger."""


def plain(value: Any) -> Any:
    """A number of numpy as Python has it; all else as it is."""
    item = getattr(value, "item", None)
    return value if item is None else item()


def rounded(value: Any, digits: int = 5) -> Any:
    """A number in significant digits, as tables for pictures have it; None stays None."""
    return None if value is None else float(f"{value:.{digits}g}")


def counted(number: float, noun: str, ending: str = "s") -> str:
    """`1 probe`, `1,024 probes`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else ending}"


def some(names: Iterable[object], most: int) -> str:
    """`a, b and 3 more`: the first ones, and how many there are besides."""
    texts = [*map(str, names)]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


class Bound(NamedTuple):
    """What a policy asks of a figure: a limit, which itself passes, and its good side."""

    limit: float
    good: Side

    def passes(self, value: float) -> bool:
        """Whether a value keeps it, which NaN never does."""
        return value >= self.limit if self.good == "above" else value <= self.limit


Limits: TypeAlias = Mapping[str, Bound]
"""What a policy asks of figures, by their names."""


def bounds(good: Side, **limits: float | None) -> dict[str, Bound]:
    """Bounds of one side by figure, without those that are None; `__` stands for a dot."""
    known = {name.replace("__", "."): limit for name, limit in limits.items()}
    return {name: Bound(limit, good) for name, limit in known.items() if limit is not None}


@dataclass(frozen=True)
class Figure:
    """One number, or word, of a verdict.

    Attributes:
        name: `cosine.min`; the JUnit property is `ane.<name>`.
        value: as measured; a share for the unit `%`.
        unit: `bytes`, `dB`, `nats`, `tok/s`, `s`, `%`, `x`, or what is counted: `probes`.
        label: how people call it, such as `cosine`; empty for what is counted.
        of: what it is a part of, such as all weights.
        limit: what the policy asks for.
        good: the side of the limit that passes, the limit included.
        note: a few words on it: `worst of 2 probes`.
        shown: whether the one line of a verdict shows it beside the figure that decides.
    """

    name: str
    value: float | int | str
    unit: str = ""
    label: str = ""
    of: float | None = None
    limit: float | None = None
    good: Side | None = None
    note: str = ""
    shown: bool = False

    def __post_init__(self) -> None:
        """Numbers of numpy become Python's: nothing else crosses from a worker of pytest-xdist."""
        for name in ("value", "of", "limit"):
            object.__setattr__(self, name, plain(getattr(self, name)))

    @property
    def passes(self) -> bool:
        """Whether the limit is kept, which NaN never does; true where there is none."""
        if self.limit is None or isinstance(self.value, str):
            return True
        return Bound(self.limit, self.good or "below").passes(self.value)

    @property
    def headroom(self) -> float:
        """Distance to the limit as a share of it; the least decides. Infinite without a limit."""
        if self.limit is None or isinstance(self.value, str):
            return float("inf")
        return abs(self.value - self.limit) / (abs(self.limit) or 1.0)


_ASKS = {"min": "at least", "max": "at most", "warn": "at most"}


def loosened(
    policy: Record, defaults: Mapping[str, float | None] = MappingProxyType({}), of: str = ""
) -> Iterator[Figure]:
    """What a policy, or that `of` an output, asks less of than the default, in words.

    `min-cosine at least 0.9, default 0.97`. `defaults` go before those of the record.
    """
    for key, field_ in type(policy).model_fields.items():
        side, limit = key.partition("_")[0], getattr(policy, key)
        default = defaults.get(key, field_.default)
        if side not in _ASKS or None in (limit, default):
            continue
        if limit < default if side == "min" else limit > default:
            words = f"{_ASKS[side]} {limit:g}, default {default:g}"
            label, name = f"{of} {kebab(key)}".strip(), ".".join(filter(None, (of, key)))
            yield Figure(f"looser.{name}", words, label=label, shown=True)


def limited(figures: Iterable[Figure], limits: Limits) -> Iterator[Figure]:
    """Figures beside what a policy asks of them; others as they are."""
    for figure in figures:
        bound = limits.get(figure.name)
        yield figure if bound is None else replace(figure, limit=bound.limit, good=bound.good)


@dataclass(frozen=True)
class Where:
    """Where a finding is; every field may be empty."""

    op: str = ""
    weight: str = ""
    probe: str = ""
    position: int | None = None
    output: str = ""
    shard: str = ""

    @property
    def noun(self) -> str:
        """The most particular thing that is named: `weight`, `op`, `probe`, `shard` or nothing."""
        nouns = ("weight", "op", "probe", "shard", "output")
        return next((noun for noun in nouns if getattr(self, noun)), "")

    @property
    def name(self) -> str:
        """Its name."""
        return getattr(self, self.noun) if self.noun else ""


@dataclass(frozen=True)
class Finding:
    """One thing that a judge found.

    Attributes:
        severity: `failed` and `unproven` decide the status; `warned` and `note` do not.
        reason: a statement of fact without a full stop at its end, and no remedy in it.
        where: the op, weight, probe or shard it is about.
        remedy: what to do, in the imperative.
        kind: what findings alike have in common, as the predicate of a plural: reports group them
            as `17 weights have 2 bits instead of 4: ...`. Empty for what stands alone.
        figure: name of the figure that is beyond its limit, if that is the reason.
    """

    severity: Severity
    reason: str
    where: Where = Where()
    remedy: str = ""
    kind: str = ""
    figure: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table; unit, limit and good side are as of a `Figure`.

    With `bar`, the page draws numbers as bars too, for histograms.
    """

    title: str
    unit: str = ""
    limit: float | None = None
    good: Side | None = None
    bar: bool = False


@dataclass(frozen=True)
class Table:
    """Rows behind a verdict, the worst first; a cell that is not known is None.

    Programs find it by its name, such as `probes`. The terminal prints it if it is `listed`; others
    are there for pictures and JSON.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    name: str = ""
    listed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(tuple(map(plain, row)) for row in self.rows))
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.title!r} has not {len(self.columns)} cells")

    @property
    def records(self) -> list[dict[str, Cell]]:
        """Rows as cells by the columns' titles."""
        titles = [column.title for column in self.columns]
        return [dict(zip(titles, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Verdict:
    """What a gate says of one shard or one model.

    Attributes:
        subject: qualified shard id (`smollm2:L01`) or model name (`smollm2`).
        figures: numbers, those with a limit among them.
        findings: what is wrong or worth knowing, the most important first.
        tables: what the figures were made of.
        provenance: where the numbers come from: backend, machine, versions, digests; keyed
            `ane.provenance.<key>` in reports.
        basis: what answered, where a gate has several kinds of measurement: `forecast`, `plan`,
            `simulated ANE (h16+)`.
        origin: where and when recorded evidence was measured; empty for what was measured now.
    """

    gate: str
    subject: str
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    basis: str = ""
    origin: str = ""

    @property
    def status(self) -> Status:
        """`failed` if any finding is, else `unproven` if any is, else `passed`."""
        severities = {finding.severity for finding in self.findings}
        if "failed" in severities:
            return "failed"
        return "unproven" if "unproven" in severities else "passed"

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """Findings that keep it from passing."""
        return tuple(f for f in self.findings if f.severity in ("failed", "unproven"))

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that warn."""
        return tuple(f for f in self.findings if f.severity == "warned")

    @property
    def values(self) -> dict[str, float | int | str]:
        """The figures' values by name."""
        return {figure.name: figure.value for figure in self.figures}

    def figure(self, name: str) -> Figure | None:
        """A figure by name."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def table(self, name: str) -> Table | None:
        """What programs find by its name."""
        return next((table for table in self.tables if table.name == name), None)

    def records(self, name: str) -> list[dict[str, Cell]]:
        """Rows of a table as cells by title; none where there is no such table."""
        return found.records if (found := self.table(name)) else []


def nothing(gate: str, subject: str, reason: str, remedy: str = "", **more: Any) -> Verdict:
    """The verdict where nothing could be compared or proven."""
    return Verdict(gate, subject, findings=(Finding("unproven", reason, remedy=remedy),), **more)
