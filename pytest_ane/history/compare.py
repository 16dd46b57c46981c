"""Two runs, commits, machines or systems side by side: which figures differ, and what else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_ane.history.memory import Memory, matches
from pytest_ane.history.steps import ROUNDING, change, rank
from pytest_ane.mlprogram.errors import HistoryError

_FACTS = ("commit", "chip", "machine", "os", "compute_units", "backend", "arithmetic", "versions")
_PREFIX = re.compile(r"[0-9a-f]{4,64}")
_MOST = 4
"""Values of a fact that are named; others are counted."""


class Difference(NamedTuple):
    """A figure that differs.

    Attributes:
        subject: shard or model.
        gate: its name.
        test: which test of several.
        figure: its name.
        before: of the first side: a number, or a text.
        after: of the second.
        size: as `steps.change` has it; 1 of texts.
    """

    subject: str
    gate: str
    test: str
    figure: str
    before: float | str
    after: float | str
    size: float


@dataclass(frozen=True)
class Comparison:
    """Two sides, measurement by measurement.

    Attributes:
        sides: what the two words mean: `run 1a2b`, `commit 1a2b3c4d5`, `Apple M4`.
        facts: what differs besides figures, such as `os`: its values on both sides.
        packages: measurements whose packages differ.
        questions: measurements whose questions differ.
        differences: the largest first.
        same: figures that are equal.
        only: measurements that one side alone has, by side.
        apart: measurements that different backends made, which are not compared, by the two.
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
    """Hold two sides against each other.

    Of a measurement that a side has several times the newest one counts: of the same package and
    question on both sides, if there are such.

    Args:
        memory: what is asked.
        a: a run's id, a commit, a name that git knows, or a part of a machine's, chip's or
            system's name.
        b: the same.
        gate: its name; all where it is empty.
        shards: as of `Memory.series`.

    Raises:
        HistoryError: a word means nothing here, or several things; or both words select the same
            lines, or none of this gate and these shards.
    """
    (left, ours), (right, theirs) = (_side(memory, word) for word in (a, b))
    pairs, apart, only = [], Counter[tuple[str, str]](), [0, 0]
    for key in sorted({*ours, *theirs}):
        if not matches(key[0], shards) or gate not in ("", key[1]):
            continue
        if key not in ours or key not in theirs:
            only[int(key not in ours)] += 1
        elif (pair := _pair(ours[key], theirs[key])) is None:
            apart[ours[key][0]["backend"] or "none", theirs[key][0]["backend"] or "none"] += 1
        else:
            pairs.append((key, *pair))
    if not (pairs or apart or any(only)):
        raise HistoryError(
            f"Neither {left} nor {right} has a line of this gate and these shards; leave out "
            "--gate or --shards."
        )
    if pairs and not apart:
        _check_distinct(pairs, f"{a!r} ({left}) and {b!r} ({right})")
    figures = _figures(memory, [line["id"] for _, *lines in pairs for line in lines])
    differences, same = [], 0
    for key, x, y in pairs:
        then, now = figures[x["id"]], figures[y["id"]]
        for name in then.keys() & now.keys():
            if (size := _size(name, then[name], now[name])) > ROUNDING:
                differences.append(Difference(*key, name, then[name], now[name], size))
            else:
                same += 1
    return Comparison(
        sides=(left, right),
        facts=tuple(_facts(pairs)),
        packages=sum(x["artifact"] != y["artifact"] for _, x, y in pairs),
        questions=sum(x["question"] != y["question"] for _, x, y in pairs),
        differences=tuple(sorted(differences, key=lambda d: (*rank(d.figure, d.size), d[:4]))),
        same=same,
        only=(only[0], only[1]),
        apart=tuple((x, y, count) for (x, y), count in apart.items()),
    )


_Key = tuple[str, str, str]
_Lines = dict[_Key, list[dict[str, Any]]]
_Pair = tuple[_Key, dict[str, Any], dict[str, Any]]


def _check_distinct(pairs: Sequence[_Pair], words: str) -> None:
    if all(x["id"] == y["id"] for _, x, y in pairs):
        raise HistoryError(
            f"history diff: {words} select the same lines; name two runs, commits, machines or "
            "systems that differ."
        )


def _side(memory: Memory, word: str) -> tuple[str, _Lines]:
    """What a word means, and its lines by subject, gate and test, the newest first."""
    label, where, value = _meaning(memory, word)
    names = ("subject", "gate", "test", "id", "artifact", "question", *_FACTS)
    rows = memory.ask(
        f"""
        select lines.subject, gate, test, id, artifact, question,
            {", ".join(f"lines.{name}::varchar" for name in _FACTS)}
        from lines join runs on runs.run = lines.run and runs.commit = lines.commit
        where {where} order by place desc, id desc
        """,
        [value],
    )
    found: _Lines = {}
    for row in rows:
        found.setdefault((row[0], row[1], row[2]), []).append(dict(zip(names, row, strict=True)))
    return label, found


def _meaning(memory: Memory, word: str) -> tuple[str, str, str | list[str]]:
    """A label, a condition on `lines`, and its parameter.

    Raises:
        HistoryError: there is none, or several.
    """
    runs = sorted({run.id for run in memory.runs if run.id.startswith(word)})
    commits = sorted({run.commit for run in memory.runs if run.commit.startswith(word)})
    prefix = _PREFIX.fullmatch(word)
    if (prefix and runs) or word in runs:
        return f"run {_one(word, 'runs', runs)[:8]}", "lines.run = $1", runs[0]
    if not (prefix and commits):
        name = memory.commits.find(word)
        commits = [name] if any(run.commit == name for run in memory.runs if name) else []
    if commits:
        return f"commit {_one(word, 'commits', commits)[:9]}", "lines.commit = $1", commits[0]
    places = memory.ask("select distinct chip, machine, os from lines")
    part = word.casefold()
    names = sorted({name for place in places for name in place if part in name.casefold()})
    if word and names:
        where = "list_has_any([lines.chip, lines.machine, lines.os], $1::varchar[])"
        return _listed(names), where, names
    newest = memory.runs[-1]
    of = f", of commit {newest.label}" if newest.commit else ""
    raise HistoryError(
        f"{word!r} is no run, no commit with a run and no part of a machine's name in "
        f"{memory.folder}; the newest run is {newest.id[:8]}{of}."
    )


def _one(word: str, what: str, found: Sequence[str]) -> str:
    if len(found) > 1:
        some = ", ".join(each[:12] for each in found[:_MOST])
        raise HistoryError(f"{word} stands for {len(found)} {what}: {some}; give more of it.")
    return found[0]


def _pair(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The newest measurement of each side: of one backend, and if possible of the same bytes."""
    for names in (("backend", "artifact", "question"), ("backend", "artifact"), ("backend",)):
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in theirs:
            newest.setdefault(tuple(line[name] for name in names), line)
        for line in ours:
            if (other := newest.get(tuple(line[name] for name in names))) is not None:
                return line, other
    return None


def _figures(memory: Memory, ids: Sequence[int]) -> dict[int, dict[str, float | str]]:
    rows = memory.ask(
        "select id, from_json(figures, '\"MAP(VARCHAR, VARCHAR)\"') from lines "
        "where list_contains($1::bigint[], id)",
        [list(ids)],
    )
    return {id_: {k: _value(v) for k, v in (of or {}).items()} for id_, of in rows}


def _value(text: str | None) -> float | str:
    try:
        return float(text or "")
    except ValueError:
        return text or ""


def _size(name: str, a: float | str, b: float | str) -> float:
    if isinstance(a, float) and isinstance(b, float):
        return change(name, a, b)
    return 0.0 if a == b else 1.0


def _facts(pairs: Sequence[_Pair]) -> list[tuple[str, str, str]]:
    made: list[tuple[str, str, str]] = []
    for name in _FACTS:
        before = sorted({str(line[name]) for _, line, _ in pairs})
        after = sorted({str(line[name]) for _, _, line in pairs})
        if before != after:
            made.append((name, _listed(before), _listed(after)))
    return made


def _listed(values: Sequence[str]) -> str:
    values = [value or "none" for value in values]
    more = f" and {len(values) - _MOST} more" if len(values) > _MOST else ""
    return ", ".join(values[:_MOST]) + more
