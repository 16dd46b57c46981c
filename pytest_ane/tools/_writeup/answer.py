"""A run as the answer to an intent: what it answers, what speaks against it, what was before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_ane.manifest.base import loads
from pytest_ane.manifest.ids import without_function
from pytest_ane.manifest.problems import toml_value
from pytest_ane.mlprogram.errors import ReportError
from pytest_ane.records.verify import differences
from pytest_ane.report.figures import amount
from pytest_ane.report.run import Run, read_run
from pytest_ane.tools._writeup_data import INTENT, WriteUp, digest_of, paths


@dataclass(frozen=True)
class Answer:
    """A write-up and all that is known of its run.

    Attributes:
        writeup: the page as it is.
        run: its run; `file` the name of the run's file.
        last: stem and run of the last write-up of the same shards.
        due: qualified ids of the selection that was recorded; None where nobody can tell.
        ungated: qualified ids of the same models' shards without a verdict, by model.
        changes: keys of the manifest that the run has otherwise than was recorded, as sentences;
            None where the manifest of the run is not at hand.
        charts: title, file's name and description of each picture.
        documents: what other commands printed with `--json`.
    """

    writeup: WriteUp
    run: Run
    file: str
    last: tuple[str, Run] | None = None
    due: tuple[str, ...] | None = None
    ungated: Mapping[str, Sequence[str]] = field(default_factory=dict)
    changes: tuple[str, ...] | None = None
    charts: tuple[tuple[str, str, str], ...] = ()
    documents: tuple[Mapping[str, Any], ...] = ()

    @property
    def manifest_changed(self) -> bool:
        """Whether the run read another manifest than was recorded."""
        return self.run.facts.digest != self.writeup.head.manifest_sha256


def caveats(answer: Answer) -> Iterator[str]:
    """What speaks against taking the result for an answer to the intent, a sentence each."""
    head, facts, rows = answer.writeup.head, answer.run.facts, answer.run.rows
    text = answer.writeup.parts.get(INTENT)
    if text is None:
        yield "The recorded intent is no longer on this page."
    elif digest_of(text) != head.intent_sha256:
        yield "The intent was changed after it was recorded."
    if not facts.started:
        yield "The run does not say when it began, so the intent may be younger than the result."
    elif facts.started < head.recorded:
        yield "The intent was written after the result."
    if answer.manifest_changed:
        changes = answer.changes
        which = f": {'; '.join(changes)}" if changes else ", in no key"
        if changes is None:
            which = "; the keys are unknown, as one of the two files is gone or damaged"
        yield f"The manifest was changed after the intent was recorded{which}."
    if facts.stopped:
        yield f"The run ended early ({facts.stopped.rstrip('.')})."
    gated = {_base(row.subject) for row in rows if row.gate}
    due = answer.due
    if due is None and facts.selection != head.shards:
        selected = facts.selection or "nothing"
        yield f"The intent is about {head.shards}, and the run gated {selected}."
    if due is not None:
        if missing := [id for id in due if _base(id) not in gated]:
            yield f"The run has no verdict of {few(missing)}."
        models = {id.partition(":")[0] for id in due}
        known = {*map(_base, due), *models}
        if others := sorted(gated - known):
            yield f"The run also gated {few(others)}, which the intent is not about."
    if facts.commit != head.commit:
        before, after = (commit[:12] or "no commit" for commit in (head.commit, facts.commit))
        yield f"The run is of another commit than the intent: {before}, then {after}."


def changed_keys(before: Path, now: Path) -> tuple[str, ...] | None:
    """Keys of two manifests that differ, with their values; None where one is no TOML."""
    try:
        old, new = (loads(file.read_bytes().decode("utf-8-sig")) for file in (before, now))
    except ValueError:
        return None
    return tuple(f"{key} {_value(a)} -> {_value(b)}" for key, a, b in differences(old, new))


def _value(value: Any) -> str:
    return "absent" if value is None else toml_value(value)


def last_of(writeup: WriteUp, run: Run) -> tuple[str, Run] | None:
    """Stem and run of the newest earlier write-up with a verdict of one of a run's shards."""
    asked = {(row.gate, row.subject) for row in run.rows if row.gate}
    folder = writeup.path.parent
    for path in reversed([p for p in paths(folder) if p.name < writeup.path.name]):
        try:
            other = read_run(path.with_suffix(".jsonl"))
        except ReportError:
            continue
        if any((row.gate, row.subject) in asked for row in other.rows):
            return path.stem, other
    return None


def suggestions(document: Mapping[str, Any]) -> Iterator[str]:
    """What a document of `recommend` or `bound` suggests; pictures tell of others.

    Raises:
        ReportError: it is damaged.
    """
    command = document["command"]
    try:
        if command == "recommend":
            yield _recommended(document)
        elif command == "bound":
            yield from [_bound(document, call) for call in document["calls"]]
    except (LookupError, TypeError, ValueError, ArithmeticError):
        raise ReportError(
            f"What {command} printed is damaged; print it again with --json."
        ) from None


def _recommended(data: Mapping[str, Any]) -> str:
    best, tried = data.get("best"), len(data["candidates"])
    if not best:
        return f"recommend: none of {tried} candidates passes every gate"
    size = amount(float(best["size"]), "bytes")
    return f"recommend: {best['name']}, {size}, is the smallest of {tried} that passes every gate"


def _bound(data: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    tokens, total = int(call["tokens"] or 1), call["total"]
    rates = [tokens / float(s) for s in (total["seconds"], call["half_weights"], call["half_macs"])]
    rate, weights, macs = (amount(each, "tok/s") for each in rates)
    return (
        f"bound: {data['name']} on {data['device']['name']} at T = {tokens} is bound by "
        f"{total['bound_by']}: at most {rate}, {weights} with weights of half the bytes, {macs} "
        "with half the multiply-accumulates"
    )


def few(names: Sequence[str], most: int = 12) -> str:
    """Names in few characters; of many, the first and how many more."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _base(subject: str) -> str:
    """A shard without the function of its package."""
    return without_function(subject)[0]
