"""What a report shows of earlier runs: the figures of the last one, and a figure's course."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytest_ane.history.memory import Memory

Asked: TypeAlias = tuple[str, str, str]
"""A gate, its subject and the test, which is empty where a gate has one."""


@dataclass(frozen=True)
class Earlier:
    """What a run measured.

    Attributes:
        label: of its commit, `1a2b3c4d5`, or of the run outside of git.
        time: UTC, `2026-11-21 10:00:00`.
        commit: full id; empty outside of git.
        figures: values by name, of each gate, subject and test; texts are left out.
    """

    label: str
    time: str
    commit: str
    figures: Mapping[Asked, Mapping[str, float]] = field(default_factory=dict)


class Point(NamedTuple):
    """A figure in one run.

    Attributes:
        label: as of `Earlier`.
        time: UTC, `2026-11-21 10:00:00`.
        value: as measured.
    """

    label: str
    time: str
    value: float


def last_before(folder: Path, before: str | datetime, model: str) -> Earlier | None:
    """The run before another one.

    Args:
        folder: of the memory.
        before: a run's id, or a time. A run that has no line yet is the newest one.
        model: its name.

    Returns:
        The run before it in git's order, or by time; None for the first one.

    Raises:
        HistoryError: duckdb is missing, or the folder holds no line of the model.
    """
    memory = Memory(folder, [model])
    if isinstance(before, datetime):
        limit = str(before.astimezone(timezone.utc).replace(tzinfo=None, microsecond=0))
        places = [i for i, run in enumerate(memory.runs) if run.time < limit]
    else:
        at = next((i for i, run in enumerate(memory.runs) if run.id == before), len(memory.runs))
        places = [*range(at)]
    if not places:
        return None
    run = memory.runs[places[-1]]
    figures: dict[Asked, dict[str, float]] = {}
    for *asked, name, value in memory.figures_of(run):
        figures.setdefault((asked[0], asked[1], asked[2]), {})[name] = value
    return Earlier(run.label, run.time, run.commit, figures)


def series(
    folder: Path, gate: str, subject: str, figure: str, *, test: str = "", backend: str = ""
) -> list[Point]:
    """One figure over runs, in git's order or by time.

    Args:
        folder: of the memory.
        gate: its name.
        subject: qualified shard, or model.
        figure: its name.
        test: which test, where the gate has several of one subject.
        backend: `cpu` or `coreml`; empty for the one of the newest run, for numbers of different
            backends are no series.

    Raises:
        HistoryError: duckdb is missing, or the folder holds no line of the model.
    """
    memory = Memory(folder, [subject.partition(":")[0]])
    found = [
        one for one in memory.series(figure, gate=gate, shards=subject)
        if (one.subject, one.test) == (subject, test) and backend in ("", one.backend)
    ]  # fmt: skip
    if not found:
        return []
    newest = max(found, key=lambda one: one.runs[-1])
    runs = [memory.runs[place] for place in newest.runs]
    return [Point(r.label, r.time, v) for r, v in zip(runs, newest.values, strict=True)]
