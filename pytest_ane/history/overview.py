"""What a memory holds, and the commits at which its figures stepped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ane.history.memory import Memory
from pytest_ane.history.order import Run
from pytest_ane.history.steps import Step, steps

_WORDS = {
    "artifact": "package", "question": "question", "versions": "versions", "chip": "chip",
    "machine": "machine", "os": "system", "compute_units": "compute units",
    "arithmetic": "arithmetic",
}  # fmt: skip
"""Facts of a line, and what people call them."""


@dataclass(frozen=True)
class ModelSummary:
    """What a memory holds of one model.

    Attributes:
        model: its name.
        lines: measurements.
        runs: of pytest.
        commits: of git, those that git does not know included.
        first: time of the first line, UTC.
        last: of the last.
        machines: chip and system of each.
    """

    model: str
    lines: int
    runs: int
    commits: int
    first: str
    last: str
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Turn:
    """Steps of one subject in one run.

    Attributes:
        subject: shard or model.
        run: the first with the new values.
        before: the last with the old ones.
        title: of the run's commit.
        steps: the largest first.
        changed: what else is different from then on: `package`, `versions`.
    """

    subject: str
    run: Run
    before: Run
    title: str
    steps: tuple[Step, ...]
    changed: tuple[str, ...]

    @property
    def size(self) -> float:
        """Of the largest step."""
        return self.steps[0].size


def summaries(memory: Memory, *, gate: str = "", shards: str = "all") -> list[ModelSummary]:
    """One for each model with lines of this gate and these shards; arguments as of `turns`."""
    rows = memory.ask(
        """
        select split_part(subject, ':', 1), count(*), count(distinct run),
            count(distinct commit) filter (commit <> ''), min(time), max(time),
            list_sort(list(distinct concat_ws(', ', nullif(chip, ''), nullif(os, ''))))
        from lines where list_contains($1, subject) and ($2 = '' or gate = $2)
        group by 1 order by 1
        """,
        [memory.subjects(shards), gate],
    )
    return [
        ModelSummary(model, lines, runs, commits, str(first), str(last), tuple(machines))
        for model, lines, runs, commits, first, last, machines in rows
    ]


def turns(memory: Memory, *, figure: str = "", gate: str = "", shards: str = "all") -> list[Turn]:
    """Steps by subject and run, those with the largest step first; arguments as of `steps`."""
    found: dict[tuple[str, int], list[Step]] = {}
    for step in steps(memory, figure=figure, gate=gate, shards=shards):
        found.setdefault((step.series.subject, step.series.runs[step.at]), []).append(step)
    ids = {i for group in found.values() for i in _sides(group[0])}
    facts = memory.facts(sorted(ids))
    return [
        Turn(
            subject,
            run := memory.runs[place],
            memory.runs[group[0].series.runs[group[0].at - 1]],
            memory.commits.titles.get(run.commit, ""),
            tuple(group),
            tuple(changed(*(facts[i] for i in _sides(group[0])))),
        )
        for (subject, place), group in found.items()
    ]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Which facts of two lines differ."""
    return (word for key, word in _WORDS.items() if before[key] != after[key])


def _sides(step: Step) -> Sequence[int]:
    """Ids of the lines on both sides of a step."""
    return step.series.ids[step.at - 1], step.series.ids[step.at]
