"""A drift in words: a table, two curves, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_ane.analysis.causes import Causes, Part, mean_kl
from pytest_ane.analysis.drift import Drift, Reading, Readings, ShardDrift
from pytest_ane.gates.behaviour.measure import Behaviour
from pytest_ane.report.chart import chart

_COLUMNS = (
    "shard", "cosine", "rel L2", "pos 0", "max |x|",
    "own cos", "own L2", "end cos", "KL", "top-1",
)  # fmt: skip
_FEW = 10
"""One of so many shards is few: where so few have half of the KL, they are named."""
_NAMED = 4
"""More names than these are only counted."""


def lines(drift: Drift, causes: Causes, model: str) -> Iterator[str]:
    """The whole report, for a terminal of 80 columns."""
    count = sum(max(len(p.positions) - 1, 0) for p in drift.end.prompts)
    yield f"{model}: {len(drift.shards)} shards; positions: {count}, and position 0 apart"
    yield "  stack as it is: lowest cosine, relative L2, cosine at position 0, largest |x|"
    yield "  own, on exact states: lowest cosine, relative L2"
    yield "  alone, all others exact: lowest cosine after the last block, mean KL, top-1"
    yield ""
    yield from _table(drift)
    yield ""
    names = [one.shard for one in drift.shards]
    yield from chart(
        "relative L2 after each shard: # stack as it is, o own on exact states",
        {
            "#": [_l2(one.stack) for one in drift.shards],
            "o": [_l2(one.own) for one in drift.shards],
        },
        names,
    )
    yield ""
    yield from chart(
        "mean KL (nats) of the stack with each shard alone, all others exact",
        {"#": [mean_kl(one.end) for one in drift.shards]},
        names,
    )
    yield ""
    # Greedy text was not asked for, so what the summary says of it means nothing.
    yield f"stack {causes.stack.status}: {causes.stack.summary.partition(' · greedy')[0]}"
    yield sentence(causes)


def sentence(causes: Causes) -> str:
    """Whether one shard breaks the stack, which, or all wear it down."""
    if causes.reference.status != "passed":
        return f"The reference itself does not meet the policy: {causes.reference.reasons[0]}"
    return _broken(causes) if causes.breaking else _worn(causes)


def _broken(causes: Causes) -> str:
    does = "breaks it: it fails" if len(causes.breaking) == 1 else "break it: each fails"
    others = _share([part for part in causes.parts if not part.breaks])
    rest = f"; all others together have {others} of the KL" if causes.shared else ""
    holds = causes.stack.status == "passed"
    still = ", and the stack as it is passes all the same" if holds else ""
    return f"{_listed(causes.breaking)} {does} alone in an otherwise exact stack{rest}{still}."


def _worn(causes: Causes) -> str:
    holds, few = causes.stack.status == "passed", max(1, len(causes.parts) // _FEW)
    start = "No shard breaks it" if holds else "All wear it down, alone each passes"
    if not causes.shared:
        return f"{start}: no KL at all."
    most, worst = causes.parts[: causes.half], causes.parts[0]
    if holds or causes.half > few:
        return (
            f"{start}: {worst.shard} has the most of the KL ({_share([worst])}), and {causes.half} "
            f"of {len(causes.parts)} make up half."
        )
    wear = "wears it down, though it" if causes.half == 1 else "wear it down, though each"
    return f"{_listed([p.shard for p in most])} {wear} passes alone: {_share(most)} of the KL."


def _share(parts: Sequence[Part]) -> str:
    return f"{sum(part.share for part in parts):.0%}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _table(drift: Drift) -> Iterator[str]:
    rows = [_COLUMNS, *map(_row, drift.shards)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        yield f"{first:<{widths[0]}} {' '.join(cells)}"


def _row(one: ShardDrift) -> tuple[str, ...]:
    return (
        one.shard,
        _cosine(one.stack.rest),
        f"{_l2(one.stack):.1e}",
        _cosine(one.stack.first),
        f"{_largest(one.stack):.1f}",
        _cosine(one.own.rest),
        f"{_l2(one.own):.1e}",
        _cosine(one.final.rest) if one.final else "-",
        f"{mean_kl(one.end):.1e}",
        _top1(one.end),
    )


def _cosine(reading: Reading | None) -> str:
    return "-" if reading is None or reading.cosine is None else f"{reading.cosine:.4f}"


def _l2(readings: Readings) -> float:
    return readings.rest.relative_l2 if readings.rest else math.nan


def _largest(readings: Readings) -> float:
    """Of all positions: what fp16 must hold."""
    found = [one.largest for one in (readings.first, readings.rest) if one]
    return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)


def _top1(behaviour: Behaviour) -> str:
    found = [p.top1 for prompt in behaviour.prompts for p in prompt.positions[1:]]
    return f"{sum(found) / len(found):.0%}" if found else "-"
