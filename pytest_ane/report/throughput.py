"""Timed benchmarks as tables: speeds, the parts of a token's time, load times, noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from pytest_ane.gates.throughput.baseline import Calibration
from pytest_ane.gates.throughput.speed import Speed, percent, rate, seconds
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.report.table import columns

_SHOWN = 12
"""Calls and loads that are shown before the rest is only counted; -v shows all."""
_STATE = ("power", "thermal", "load")
"""The state of a machine that its line shows."""
_ENOUGH = 10
"""Runs from which sigma is known to a quarter."""

Judged = tuple[Speed, Verdict]


def lines(judged: Sequence[Judged], *, everything: bool = False) -> Iterator[str]:
    """The machine, a table of speeds, a profile of every decoded model, and load times by kind.

    Models come first, then what lost most against its baseline.
    """
    last = judged[-1][0]
    state = (f"{name} {last.state[name]}" for name in _STATE if name in last.state)
    yield " · ".join([*last.identity.values(), *state])
    ordered = sorted(judged, key=_rank)
    decoded = sum(speed.what == "decode" for speed, _ in ordered)
    shown = ordered if everything else ordered[: max(_SHOWN, decoded)]
    heads = ("", "", "now", "a token", "baseline", "change", "control")
    yield from columns([heads, *(_row(speed, verdict.values) for speed, verdict in shown)], words=2)
    if hidden := len(ordered) - len(shown):
        yield f"... and {hidden} more (-v shows all)"
    for speed, _ in ordered[:decoded]:
        yield ""
        yield from profile(speed)
    yield from loads([speed for speed, _ in judged])


def profile(decoded: Speed) -> Iterator[str]:
    """The parts of a token's time: shards by kind, together and each, and the host's side."""
    whole = sum(decoded.profile.values())
    rows: list[tuple[str, ...]] = [("", "shards", "ms/token", "each", "share")]
    for part, spent in decoded.profile.items():
        count = decoded.counts.get(part, 0)
        each = f"{1000 * spent / count:.3f}" if count else ""
        share = f"{spent / whole:.1%}" if whole else ""
        rows.append((part, str(count or ""), f"{1000 * spent:.3f}", each, share))
    yield f"{decoded.subject}: {decoded.figure()}, of which a token's"
    yield from columns(rows)


def loads(speeds: Sequence[Speed]) -> Iterator[str]:
    """Load and first prediction by kind of shard: together, the median one, least and most."""
    kinds = grouped(
        (f"{speed.subject.partition(':')[0]} {speed.kind}".strip(), speed.median)
        for speed in speeds if speed.what == "load"
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for kind, times in sorted(kinds.items()):
        figures = map(seconds, (sum(times), median(times), min(times), max(times)))
        rows.append((kind, str(len(times)), *figures))
    if rows:
        yield ""
        yield "load and first prediction"
        yield from columns([("", "shards", "all", "each", "least", "most"), *rows])


def noise(calibration: Calibration) -> Iterator[str]:
    """The noise of a machine, the noisiest benchmark first, then how well sigma is known."""
    noises = sorted(calibration.noises, key=lambda noise: -noise.sigma)
    rows = [("benchmark", "median", "sigma", "2.8 sigma", "runs")]
    for one in noises:
        what = f"T={one.tokens}" if one.what == "call" and one.tokens else one.what
        figures = (seconds(median(one.medians)), percent(one.sigma), percent(one.limit))
        rows.append((f"{one.subject} {what}", *figures, str(one.runs)))
    yield ""
    yield ", ".join(filter(None, calibration.identity.values()))
    yield from columns(rows)
    few = min(noises, key=lambda noise: noise.runs)
    if few.runs < _ENOUGH:
        yield f"sigma of {few.runs} runs is itself known to {percent(few.uncertainty)}; see --runs"


def _rank(judged: Judged) -> tuple[bool, float, str]:
    speed, verdict = judged
    change = verdict.values.get("change", 0.0)
    assert not isinstance(change, str)
    # Of a load's seconds more is worse, of tokens a second less.
    return speed.what != "decode", change if speed.tokens else -change, speed.subject


def _row(speed: Speed, facts: Mapping[str, float | int | str]) -> tuple[str, ...]:
    then = facts.get("baseline_tok_s" if speed.tokens else "baseline_seconds")
    baseline = (rate if speed.tokens else seconds)(then) if isinstance(then, float) else "-"
    token = f"{1000 * speed.median / speed.tokens:.3f} ms" if speed.tokens else ""
    changes = (facts.get("change"), facts.get("control_change"))
    shown = (percent(c, signed=True) if isinstance(c, float) else "-" for c in changes)
    return (speed.subject, speed.title, speed.figure(), token, baseline, *shown)
