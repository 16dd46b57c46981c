"""A run as GitHub shows it: the job summary in Markdown, and annotations as workflow commands.

Limits and escapes are those of the runner (github.com/actions/runner): a summary of more than 1 MiB
is dropped as a whole, and of each kind only the first ten annotations of a step are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from pytest_ane.mlprogram.text import LONGEST, printable
from pytest_ane.report.markdown import code
from pytest_ane.report.run import Row, counts, ranked

ROOM = 1_000_000
"""Bytes of a step's summary file that we fill at most; GitHub drops more than 1,048,576."""
ANNOTATIONS = 10
"""Annotations of one kind that GitHub shows of a step."""

_NOTE = 200
"""Bytes kept free for the line that counts what was left out."""
_MEANINGFUL = re.compile(r"([]!#$&()*+.:<>@[\\^_`{|}~-])")
"""Punctuation that can mean something in GitHub's Markdown: mentions, links and formulas, too."""
Place: TypeAlias = tuple[str, int | None]
"""A file, relative to the repository's root, and a line of it, from 1."""


def summary(rows: Sequence[Row], header: str, room: int = ROOM) -> str:
    """Markdown of at most `room` bytes of UTF-8, worst first; empty where no head fits."""
    head = f"## {_headline(rows)}\n\n{code(header)}\n"
    if (left := room - len(head.encode()) - _NOTE) < 0:
        return ""
    parts, out = [head], 0
    for opening, items, closing in _sections(rows):
        left -= len(f"{opening}{closing}".encode())
        taken = [item for item in items if (left := left - len(item.encode())) >= 0]
        out += len(items) - len(taken)
        if taken:
            parts += [opening, *taken, closing]
    if out:
        parts.append(f"\n{out} more left out: GitHub takes 1 MiB a step; the log has them all.\n")
    return "".join(parts)


def commands(
    rows: Sequence[Row], header: str, place: Callable[[Row], Place | None] = lambda _: None
) -> Iterator[str]:
    """Workflow commands, a line each: errors and warnings worst first, and one notice."""
    ordered = ranked(rows)
    red = [row for row in ordered if row.red]
    odd = [row for row in ordered if row.allowed or row.warned]
    for level, wanted in (("error", red), ("warning", odd)):
        # The last one shown counts those that are not.
        shown = wanted if len(wanted) <= ANNOTATIONS else wanted[: ANNOTATIONS - 1]
        for row in shown:
            title = " ".join(filter(None, (row.name, row.gate, row.label)))
            sentences = "\n".join(map(_plain, row.reasons or (row.summary,)))
            yield _command(level, title, sentences, place(row))
        if more := wanted[len(shown) :]:
            yield _command(level, f"{len(more)} more", f"Also {counts(more)}; see the summary.")
    yield _command("notice", "ane gates", f"{_headline(rows)} ({header})")


def _sections(rows: Sequence[Row]) -> Iterator[tuple[str, list[str], str]]:
    for label, group in groupby(ranked(rows), key=lambda row: row.label):
        of_label = list(group)
        title = f"{markdown(label)} ({len(of_label)})"
        if label != "passed":
            yield f"\n### {title}\n\n", [_item(row) for row in of_label], ""
            continue
        opening = f"\n<details><summary>{title}</summary>\n\n| | gate | |\n|---|---|---|\n"
        texts = ((row.name, row.gate, row.summary) for row in of_label)
        cells = [f"| {' | '.join(map(markdown, row))} |\n" for row in texts]
        yield opening, cells, "\n</details>\n"


def _item(row: Row) -> str:
    gate = f" {markdown(row.gate)}" if row.gate else ""
    allowed = ", allowed by the policy" if row.allowed else ""
    first = f"- **{markdown(row.name)}**{gate}{allowed}: {markdown(row.summary)}\n"
    more = () if row.reasons == (row.summary,) else row.reasons
    return first + "".join(f"  - {markdown(reason)}\n" for reason in more)


def _headline(rows: Sequence[Row]) -> str:
    return f"ane gates: {counts(rows) if rows else 'none came to a verdict'}"


def _command(level: str, title: str, message: str, place: Place | None = None) -> str:
    """`::error file=shards.toml,line=3,title=...::...`."""
    properties = {"title": _plain(title)}
    if place is not None:
        file, line = place
        properties = {"file": file, **({"line": str(line)} if line else {}), **properties}
    texts = {n: _data(v).replace(":", "%3A").replace(",", "%2C") for n, v in properties.items()}
    given = ",".join(f"{name}={text}" for name, text in texts.items())
    return f"::{level} {given}::{_data(message[:LONGEST])}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def markdown(text: str) -> str:
    """A text on one line that renders as itself, whatever Markdown or HTML it holds."""
    return _MEANINGFUL.sub(r"\\\1", _plain(text))


def _plain(text: str) -> str:
    return printable(" ".join(text.split()), LONGEST)
