"""`pytest-ane history`: ask the memory of runs: when a figure stepped, what two differ in."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pytest_ane.cli.options import add_shared
from pytest_ane.cli.output import Output
from pytest_ane.gates.verdict import counted
from pytest_ane.mlprogram.errors import HistoryError
from pytest_ane.project.entries import read_manifest
from pytest_ane.records.history import compare, judge
from pytest_ane.records.memory import FOLDER, Memory
from pytest_ane.records.steps import Turn, summaries, turns
from pytest_ane.report.table import columns

EXAMPLE = "pytest-ane history cosine.min --shards L11"
_SHOWN = 12
"""Steps, or differences, that a table has; --json has all."""
_SKIPPED = 3
_TURN = ("commit", "subject", "gate", "figure", "before -> after", "since")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked, and where the memory is."""
    words = (
        "a figure such as cosine.min: its course over commits; 'diff' and two runs, commits or "
        "parts of machines' names: what they differ in; 'judge': since when today's policy would "
        "have been red; nothing: an overview with all steps"
    )
    parser.add_argument("what", nargs="*", metavar="FIGURE | diff A B | judge", help=words)
    add_shared(parser, "shards", help="which shards and models (default: all)")
    parser.add_argument("--gate", default="", help="figures of this gate alone")
    words = "default: the folder history next to the manifest"
    parser.add_argument("--history", type=Path, metavar="DIR", help=words)
    add_shared(parser, "manifest")


def run(options: argparse.Namespace) -> Output:
    """Read the memory, note what was skipped, and answer."""
    manifest = options.manifest or Path("shards.toml")
    memory = Memory(options.history or manifest.absolute().parent / FOLDER)
    asked = {"gate": options.gate, "shards": options.shards}
    memory.check(**asked)
    if memory.skipped:
        named = ", ".join(map(str, memory.skipped[:_SKIPPED]))
        yield f"note: {counted(len(memory.skipped), 'line')} skipped: {named}"
    lost = [run.label for run in memory.runs if run.commit and not run.known]
    if lost and len(lost) < len(memory.runs):
        yield f"note: git does not know the commits of {', '.join(lost[:_SKIPPED])}"
    match options.what:
        case []:
            data = yield from _overview(memory, asked)
        case ["judge"]:
            data = yield from _judge(memory, manifest, asked)
        case ["diff", a, b]:
            data = yield from _diff(memory, asked, a, b)
        case ["diff", *_]:
            raise HistoryError("history diff takes two words, such as: history diff HEAD~3 HEAD")
        case [figure]:
            data = yield from _course(memory, asked, figure)
        case _:
            raise HistoryError(
                f"history takes one figure, and was given {' '.join(options.what)}; pytest-ane "
                "history --help shows how."
            )
    return {**data, "skipped": memory.skipped}


def _overview(memory: Memory, asked: dict[str, Any]) -> Output:
    models, found = summaries(memory, **asked), turns(memory, **asked)
    heads = ("model", "lines", "runs", "commits", "first", "last", "machines")
    rows = [
        (m.model, f"{m.lines:,}", f"{m.runs:,}", f"{m.commits:,}", m.first[:10], m.last[:10],
         "; ".join(m.machines))
        for m in models
    ]  # fmt: skip
    yield from columns([heads, *rows], words=[True, False, False, False, True, True, True])
    yield ""
    if found:
        yield "steps, the largest first:"
        yield from columns([_TURN, *map(_turn, found[:_SHOWN])], words=len(_TURN))
    else:
        yield "no figure stepped"
    if len(found) > _SHOWN:
        yield f"and {len(found) - _SHOWN:,} more, which --json lists"
    return {"models": models, "steps": found}


def _turn(turn: Turn) -> tuple[str, ...]:
    step = turn.steps[0]
    more = f" and {counted(len(turn.steps) - 1, 'more figure')}" if len(turn.steps) > 1 else ""
    why = "; ".join(filter(None, (turn.title[:60], *(f"another {word}" for word in turn.changed))))
    values = f"{_number(step.before)} -> {_number(step.after)}"
    figure = f"{step.series.figure}{more}"
    return turn.run.label, turn.subject, _test(step.series), figure, values, why


def _course(memory: Memory, asked: dict[str, Any], figure: str) -> Output:
    found = memory.series(figure, **asked)
    if not found:
        names = memory.names(**asked)
        raise HistoryError(
            f"No line that was asked for has the figure {figure!r}; of {len(names)} there are "
            f"{', '.join(get_close_matches(figure, names, 4, 0.4) or names[:4])}."
        )
    steps = turns(memory, figure=figure, **asked)
    stepped = {step.series.ids[step.at]: (turn, step) for turn in steps for step in turn.steps}
    for series in found:
        on = f" on {series.backend}" if series.backend else ""
        yield f"{series.subject} {_test(series)} {series.figure}{on}:"
        rows = [("commit", "time", "value", "")]
        for id_, place, value in zip(series.ids, series.runs, series.values, strict=True):
            run = memory.runs[place]
            note = memory.commits.titles.get(run.commit, "")[:60]
            if id_ in stepped:
                turn, step = stepped[id_]
                others = "".join(f"; another {word}" for word in turn.changed)
                note = f"stepped: {_number(step.before)} -> {_number(step.after)}{others}"
            rows.append((run.label, run.time[:16], _number(value), note))
        yield from columns(rows, words=[True, True, False, True])
    return {"runs": memory.runs, "series": found, "steps": steps}


def _diff(memory: Memory, asked: dict[str, Any], a: str, b: str) -> Output:
    found = compare(memory, a, b, **asked)
    left, right = found.sides
    yield f"{left} against {right}"
    for name, before, after in found.facts:
        yield f"  {name}: {before} -> {after}"
    for count, what in ((found.packages, "package"), (found.questions, "question")):
        if count:
            yield f"  another {what} in {counted(count, 'measurement')}"
    for one, other, n in found.apart:
        yield f"  not compared: {counted(n, 'measurement')}, by the backend {one} and by {other}"
    for count, side in zip(found.only, found.sides, strict=True):
        if count:
            yield f"  only in {side}: {counted(count, 'measurement')}"
    yield ""
    differences, total = found.differences, len(found.differences)
    heads = ("subject", "gate", "figure", left, right)
    rows = [
        (d.subject, _test(d), d.figure, _number(d.before), _number(d.after))
        for d in differences[:_SHOWN]
    ]
    yield from columns([heads, *rows] if rows else [], words=len(heads))
    more = f" ({total - _SHOWN:,} more, which --json lists)" if total > _SHOWN else ""
    yield f"{counted(total, 'figure')} of {total + found.same:,} differ{more}"
    return {**vars(found), "differences": [difference._asdict() for difference in differences]}


def _judge(memory: Memory, manifest: Path, asked: dict[str, Any]) -> Output:
    found = judge(memory, read_manifest(manifest), **asked)
    if found.red:
        heads = ("red since", "until", "subject", "gate", "figure", "value", "limit")
        rows = [
            (red.since.label, red.until.label if red.until else "now", red.series.subject,
             _test(red.series), red.series.figure, _number(red.value),
             f"{'>=' if red.bound.good == 'above' else '<='} {_number(red.bound.limit)}")
            for red in found.red
        ]  # fmt: skip
        yield from columns([heads, *rows], words=[True] * 5 + [False, True])
        yield ""
    still = sum(red.until is None for red in found.red)
    yield f"by today's policy {still} of {counted(found.figures, 'figure')} would be red now"
    if found.silent:
        yield f"no limit on a figure: {', '.join(found.silent)}"
    if found.subjects:
        yield f"not in the manifest, so not judged: {', '.join(found.subjects)}"
    yield (
        "not judged: what a gate finds without a figure, and limits that depend on the "
        "measurement itself, such as of the total error"
    )
    return vars(found)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _test(of: Any) -> str:
    return f"{of.gate} {of.test}".rstrip()
