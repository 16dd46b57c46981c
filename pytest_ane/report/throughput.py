"""What was timed, as tables: speeds against their baselines, and where a token's time goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.machine import words
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.words import figure, percent, seconds, title

_SHOWN = 12
"""Calls and loads that are shown before the rest is only counted; -v shows all."""
_WORDS = 2
"""Columns of words, which come first."""

Judged = tuple[Speed, Verdict]


def lines(found: Sequence[Judged], *, everything: bool = False) -> Iterator[str]:
    """The machine, a table of speeds, and a profile of every model that was decoded.

    Models come first, then what lost most against its baseline.
    """
    last = found[-1][0]
    yield words(last.identity, last.state)
    ordered = sorted(found, key=_rank)
    decoded = sum(speed.what == "decode" for speed, _ in ordered)
    shown = ordered if everything else ordered[: max(_SHOWN, decoded)]
    heads = ("", "", "now", "a token", "baseline", "change")
    yield from _table([heads, *(_row(speed, verdict.facts) for speed, verdict in shown)])
    if hidden := len(ordered) - len(shown):
        yield f"... and {hidden} more (-v shows all)"
    for speed, _ in ordered[:decoded]:
        yield ""
        yield from profile(speed, [one for one, _ in found])


def profile(decoded: Speed, others: Sequence[Speed] = ()) -> Iterator[str]:
    """Where a token's time goes: shards by kind, in all and each, and the host's side.

    Loading is added where `others` has it of every shard.
    """
    whole = sum(decoded.profile.values())
    rows: list[tuple[str, ...]] = [("", "shards", "ms/token", "each", "share")]
    for part, spent in decoded.profile.items():
        count = decoded.counts.get(part, 0)
        each = f"{1000 * spent / count:.3f}" if count else ""
        share = f"{spent / whole:.1%}" if whole else ""
        rows.append((part, str(count or ""), f"{1000 * spent:.3f}", each, share))
    loads = {
        one.subject: one.median
        for one in others
        if one.what == "load" and one.subject.partition(":")[0] == decoded.subject
    }
    yield f"{decoded.subject}: {figure(decoded)}, of which a token's"
    yield from _table(rows, words=1)
    if loads and len(loads) == sum(decoded.counts.values()):
        total = sum(loads.values())
        yield (
            f"load and first prediction of {len(loads)} shards: {seconds(total)}, "
            f"{seconds(total / len(loads))} each"
        )


def _rank(judged: Judged) -> tuple[bool, float, str]:
    speed, verdict = judged
    change = verdict.facts.get("change", 0.0)
    assert not isinstance(change, str)
    # Of a load's seconds more is worse, of tokens a second less.
    return speed.what != "decode", change if speed.tokens else -change, speed.subject


def _row(speed: Speed, facts: Mapping[str, float | int | str]) -> tuple[str, ...]:
    then = facts.get("baseline_tok_s" if speed.tokens else "baseline_seconds")
    change = facts.get("change")
    token = f"{1000 * speed.median / speed.tokens:.3f} ms" if speed.tokens else ""
    return (
        speed.subject,
        title(speed),
        figure(speed),
        token,
        _then(speed, then) if isinstance(then, float) else "-",
        percent(change, signed=True) if isinstance(change, float) else "-",
    )


def _then(speed: Speed, then: float) -> str:
    if not speed.tokens:
        return seconds(then)
    return figure(speed.model_copy(update={"seconds": (speed.tokens / then,)}))


def _table(rows: Sequence[tuple[str, ...]], words: int = _WORDS) -> Iterator[str]:
    """Aligned columns: words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{'<' if i < words else '>'}{widths[i]}}" for i, cell in enumerate(row))
        yield "  ".join(cells).rstrip()
