"""The report of a drift: a table, two curves, and shard sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pytest_ane.gates.behaviour.measure import Behaviour
from pytest_ane.report.arithmetic import rules_lines, wrapped
from pytest_ane.report.table import columns
from pytest_ane.report.verdict import reasons, row
from pytest_ane.tools._drift_analysis import (
    Causes,
    Drift,
    Reading,
    Readings,
    ShardDrift,
    ShardEffect,
    mean_kl,
)

_COLUMNS = (
    "shard", "cosine", "rel L2", "pos 0", "max |x|",
    "own cos", "own L2", "end cos", "KL", "top-1",
)  # fmt: skip
_FEW = 10
"""One of so many shards is few: where so few have half of the KL, they are named."""
_NAMED = 4
"""More names than these are only counted."""
_WIDTH = 68
_HEIGHT = 8
_DECADES = 6
"""What is smaller than the largest by more lies on the floor."""


def lines(drift: Drift, causes: Causes, model: str) -> Iterator[str]:
    """The whole report, for a terminal of 80 columns."""
    count = sum(max(len(p.positions) - 1, 0) for p in drift.end.prompts)
    yield f"{model}: {len(drift.shards)} shards; {count} positions (position 0 reported separately)"
    if drift.rules is not None:
        yield from wrapped(rules_lines(drift.rules))
    yield "  stack as it is: lowest cosine, relative L2, cosine at position 0, largest |x|"
    yield "  own, on exact states: lowest cosine, relative L2"
    yield "  alone, all others exact: lowest cosine after the last block, mean KL, top-1"
    yield ""
    yield from columns([_COLUMNS, *map(_row, drift.shards)], gap=" ")
    yield ""
    names = [shard.shard for shard in drift.shards]
    yield from chart(
        "relative L2 after each shard: # stack as it is, o own on exact states",
        {
            "#": [_l2(shard.stack) for shard in drift.shards],
            "o": [_l2(shard.own) for shard in drift.shards],
        },
        names,
    )
    yield ""
    yield from chart(
        "mean KL (nats) of the stack with each shard alone, all others exact",
        {"#": [mean_kl(shard.end) for shard in drift.shards]},
        names,
    )
    yield ""
    yield f"stack {causes.stack.status}: {row(causes.stack)}"
    yield sentence(causes)


def sentence(causes: Causes) -> str:
    """The verdict of a drift: the shards that break the stack alone, or that it is gradual."""
    if causes.reference.status != "passed":
        return f"The reference itself does not meet the policy: {reasons(causes.reference)[0]}"
    return _broken(causes) if causes.breaking else _gradual(causes)


def _broken(causes: Causes) -> str:
    does = "breaks it: it fails" if len(causes.breaking) == 1 else "break it: each fails"
    others = _share([effect for effect in causes.effects if not effect.breaks])
    rest = f"; all others together have {others} of the KL" if causes.shared else ""
    holds = causes.stack.status == "passed"
    still = ", and the stack as it is passes all the same" if holds else ""
    return f"{_listed(causes.breaking)} {does} alone in an otherwise exact stack{rest}{still}."


def _gradual(causes: Causes) -> str:
    holds, few = causes.stack.status == "passed", max(1, len(causes.effects) // _FEW)
    start = "No shard breaks it" if holds else "Gradual, no single shard fails alone"
    if not causes.shared:
        return f"{start}: no KL at all."
    most, worst = causes.effects[: causes.half], causes.effects[0]
    if holds or causes.half > few:
        return (
            f"{start}: {worst.shard} has the most of the KL ({_share([worst])}), and {causes.half} "
            f"of {len(causes.effects)} make up half."
        )
    contribute = "contributes" if causes.half == 1 else "contribute"
    return (
        f"{start}: {_listed([p.shard for p in most])} {contribute} most ({_share(most)} of the KL)."
    )


def _share(effects: Sequence[ShardEffect]) -> str:
    return f"{sum(effect.share for effect in effects):.0%}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _row(shard: ShardDrift) -> tuple[str, ...]:
    return (
        shard.shard,
        _cosine(shard.stack.rest),
        f"{_l2(shard.stack):.1e}",
        _cosine(shard.stack.first),
        f"{_largest(shard.stack):.1f}",
        _cosine(shard.own.rest),
        f"{_l2(shard.own):.1e}",
        _cosine(shard.final.rest) if shard.final else "-",
        f"{mean_kl(shard.end):.1e}",
        _top1(shard.end),
    )


def _cosine(reading: Reading | None) -> str:
    return "-" if reading is None or reading.cosine is None else f"{reading.cosine:.4f}"


def _l2(readings: Readings) -> float:
    return readings.rest.relative_l2 if readings.rest else math.nan


def _largest(readings: Readings) -> float:
    """Largest magnitude at any position: fp16 must hold it."""
    largest = [r.largest for r in (readings.first, readings.rest) if r]
    return math.nan if any(map(math.isnan, largest)) else max(largest, default=math.nan)


def _top1(behaviour: Behaviour) -> str:
    agreed = [p.top1 for prompt in behaviour.prompts for p in prompt.positions[1:]]
    return f"{sum(agreed) / len(agreed):.0%}" if agreed else "-"


def chart(title: str, series: Mapping[str, Sequence[float]], names: Sequence[str]) -> Iterator[str]:
    """Lines of a chart; `series` are values by the letter that marks them, later ones on top.

    Where there are more values than columns, a column shows the largest of several. NaN and
    infinity are `!` in the top line.
    """
    finite = [v for values in series.values() for v in values if math.isfinite(v) and v > 0]
    top = math.log10(max(finite, default=1.0))
    low = max(math.log10(min(finite, default=1.0)), top - _DECADES)
    step = max(top - low, 1e-9) / (_HEIGHT - 1)
    wide = max(1, min(4, _WIDTH // max(len(names), 1)))
    columns = min(len(names), _WIDTH)
    canvas = [[" "] * (columns * wide) for _ in range(_HEIGHT)]
    for mark, values in series.items():
        for i, value in enumerate(_binned(values, columns)):
            row = _height(value, low, step)
            canvas[row][i * wide] = mark if math.isfinite(value) else "!"
    yield title
    for i in reversed(range(_HEIGHT)):
        yield f"{10 ** (low + i * step):9.1e} |{''.join(canvas[i])}".rstrip()
    yield f"{'':9} +{'-' * (columns * wide)}"
    yield _axis(names, columns * wide)


def _height(value: float, low: float, step: float) -> int:
    if not math.isfinite(value):
        return _HEIGHT - 1
    place = (math.log10(value) - low) / step if value > 0 else 0
    return min(max(round(place), 0), _HEIGHT - 1)


def _binned(values: Sequence[float], columns: int) -> Iterator[float]:
    """The largest of each column's values; NaN is larger than any."""
    for i in range(columns):
        start, end = i * len(values) // columns, (i + 1) * len(values) // columns
        yield max(values[start:end], key=lambda v: math.inf if math.isnan(v) else v)


def _axis(names: Sequence[str], width: int) -> str:
    if not names or width < len(names[0]) + len(names[-1]) + 1:
        return ""
    return f"{'':11}{names[0]}{names[-1]:>{width - len(names[0])}}"
