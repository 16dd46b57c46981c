"""Verdict of the throughput gate: the floor, and the change against the baseline. Reads no file.

A benchmark is timed in a fixed number of rounds. A change beyond the limit, in either direction,
and a speed below the floor are suspected: the benchmark is timed once more, in as many rounds. What
both runs show is confirmed; a confirmed regression fails, and so does a floor that both miss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from pytest_ane.gates.throughput.baseline import Baseline, Limit, Missing, differences, limit_of
from pytest_ane.gates.throughput.speed import Speed, percent, seconds
from pytest_ane.gates.throughput.stored import RECORD
from pytest_ane.gates.verdict import (
    Cell,
    Column,
    Figure,
    Finding,
    Limits,
    Side,
    Table,
    Verdict,
    Where,
    bounds,
    limited,
    rounded,
)
from pytest_ane.manifest.policy import ThroughputPolicy

_RECORD = f"record a baseline of this machine with: {RECORD}"


@dataclass(frozen=True)
class Throughput:
    """A timed benchmark, and what it is compared with.

    Attributes:
        speed: what was timed, the confirmation included.
        baseline: as `find` gives it; None where nobody looked.
        recording: whether this run is stored, and so becomes a baseline itself.
        compared: whether `--benchmark-compare` was given; `max-regression` compares, too.
    """

    speed: Speed
    baseline: Baseline | Missing | None = None
    recording: bool = False
    compared: bool = False


@dataclass(frozen=True)
class Change:
    """A speed against its baseline: `q - 1`, with the medians m and b of run and baseline.

    q = b / m, of a load m / b.

    Attributes:
        shares: change of tok/s, or of a load's seconds, of the run and of its confirmation: -0.1
            is a tenth less.
        control: the same of the control workload; None where one of the two has none.
        limit: the change that is allowed in either direction.
        baseline: what it is compared with.
        is_load: whether more is worse, as of seconds.
    """

    shares: tuple[float, ...]
    control: float | None
    limit: Limit
    baseline: Baseline
    is_load: bool

    @property
    def is_regression(self) -> bool:
        """Whether every run is slower by more than the limit; NaN counts as slower."""
        return all(not slower <= self.limit.share for slower in self._slower)

    @property
    def is_improvement(self) -> bool:
        """Whether every run is faster by more than the limit."""
        return all(slower < -self.limit.share for slower in self._slower)

    @property
    def _slower(self) -> list[float]:
        return [share if self.is_load else -share for share in self.shares]


def is_suspect(timed: Throughput, policy: ThroughputPolicy) -> bool:
    """Whether the run has to be confirmed: it is below the floor, or beyond the limit."""
    change = compare(timed, policy)
    beyond = isinstance(change, Change) and (change.is_regression or change.is_improvement)
    return beyond or any(_floor(timed.speed, policy))


def compare(timed: Throughput, policy: ThroughputPolicy) -> Change | Missing | None:
    """The change against the baseline, or why there is none; None where none is wanted."""
    now, baseline = timed.speed, timed.baseline
    if not timed.compared and policy.max_regression is None:
        return None
    if isinstance(baseline, Baseline):
        then, is_load = baseline.speed, not now.tokens
        if other := differences(now, then):
            return Missing(f"Run {baseline.run} is no baseline: {'; '.join(other)}.", _RECORD)
        if isinstance(limit := limit_of(policy, baseline.noise, now.what), str):
            return Missing(limit)
        pairs = [(m, then.median) for m in now.medians]
        pairs += [(now.control, then.control)] if now.control and then.control else []
        shares = [m / b - 1 if is_load else b / m - 1 for m, b in pairs]
        control = shares.pop() if len(shares) > len(now.medians) else None
        return Change(tuple(shares), control, limit, baseline, is_load)
    if timed.recording:
        return None
    return Missing(baseline.why if baseline else "Nothing is stored.", _RECORD)


def judge(timed: Throughput, policy: ThroughputPolicy, subject: str) -> Verdict:
    """Passes if the policy sets neither floor nor limit, or both hold."""
    now, change, baseline = timed.speed, compare(timed, policy), timed.baseline
    findings = [*_floor(now, policy)]
    made = [*speed_figures(now, limits(policy), is_below=bool(findings))]
    if not (math.isfinite(now.median) and now.median > 0):
        reason = f"{now.title.capitalize()}: the median round takes {now.median} s"
        findings.insert(0, Finding("failed", reason))
    if isinstance(change, Change):
        made += _change_figures(change)
        findings += [_regression(now, change)] if change.is_regression else []
    elif isinstance(change, Missing):
        findings.append(Finding("unproven", change.why.rstrip("."), remedy=change.remedy))
    elif isinstance(baseline, Missing):
        findings.append(Finding("note", baseline.why.rstrip(".")))
    if timed.recording and isinstance(baseline, Missing):
        made.append(Figure("recorded", "recorded as the baseline", shown=True))
    known = baseline if isinstance(baseline, Baseline) else None
    if known and not isinstance(change, Missing):
        findings += _notes(now, known)
    tables = tuple(_tables(now, known))
    provenance = now.identity | now.state
    return Verdict("throughput", subject, tuple(made), tuple(findings), tables, provenance)


def limits(policy: ThroughputPolicy) -> Limits:
    """What a policy asks of figures: the floor; the change depends on a stored run."""
    return bounds("above", tok_s=policy.min_tok_s)


def _floor(now: Speed, policy: ThroughputPolicy) -> Iterator[Finding]:
    """A finding if every run is below `min-tok-s`; NaN is below."""
    least = policy.min_tok_s
    if least is None or now.what == "load":
        return
    if not now.tokens:
        reason = f"A round computes no token, so min-tok-s = {least:g} was not tested"
        yield Finding("failed", reason)
    elif not any(now.tokens / median >= least for median in now.medians if median > 0):
        first, *again = map(now.figure, now.medians)
        reached = first + "".join(f" ({figure} when confirmed)" for figure in again)
        below = f"below policy.throughput.min-tok-s = {least:g}, on {now.machine}"
        reason = f"{now.title.capitalize()} reaches {reached}, {below}"
        yield Finding("failed", reason, figure="tok_s")


def _regression(now: Speed, change: Change) -> Finding:
    then, limit = change.baseline, change.limit
    first, *confirmation = (percent(share, signed=True) for share in change.shares)
    also = "".join(f" ({share} when confirmed)" for share in confirmation)
    run = f"run {then.run}" + (f" of {then.when}" if then.when else "")
    reason = (
        f"{now.title.capitalize()}: {now.figure()} is {first}{also} on the baseline's "
        f"{then.speed.figure()} ({run}), and {percent(limit.share)} is allowed ({limit.origin}), "
        f"on {now.machine}"
    )
    return Finding("failed", reason, figure="change")


def speed_figures(now: Speed, limits: Limits, *, is_below: bool) -> Iterator[Figure]:
    """What was timed; a floor that the confirmation alone keeps is no limit of the first run."""
    yield Figure("what", now.what)
    yield Figure("seconds", now.median, "s", now.title, shown=now.tok_s is None)
    if now.tok_s is not None:
        figure = Figure("tok_s", now.tok_s, "tok/s", now.title, good="above", shown=True)
        held = next(limited([figure], limits))
        yield held if held.passes or is_below else figure
        yield Figure("ms_token", 1000 * now.median / now.tokens, label="ms a token")
    yield Figure("rounds", len(now.seconds), "rounds")
    yield Figure("tokens", now.tokens, "tokens")
    if now.control is not None:
        yield Figure("control_seconds", now.control, "s", "control")


def _change_figures(change: Change) -> Iterator[Figure]:
    """The change is held against the limit on the side that is slower."""
    then, limit = change.baseline.speed, change.limit
    first, *confirmation = change.shares
    side: Side = "below" if change.is_load else "above"
    held = Figure("change", first, "%", f"change on run {change.baseline.run}", good=side,
                  limit=limit.share if change.is_load else -limit.share, shown=True)  # fmt: skip
    # A change that was not confirmed is beyond a limit that the verdict does not apply to it.
    yield held if held.passes or change.is_regression else replace(held, limit=None)
    known = "confirmed" if change.is_regression or change.is_improvement else "not confirmed"
    for share in confirmation:
        yield Figure("confirmed_change", share, "%", known, shown=True)
    if change.control is not None:
        yield Figure("control_change", change.control, "%", "control", shown=True)
    yield Figure("baseline", change.baseline.run)
    yield Figure("baseline_seconds", then.median, "s", "baseline")
    if then.tok_s is not None:
        yield Figure("baseline_tok_s", then.tok_s, "tok/s", "baseline")
    yield Figure("max_regression", limit.share, "%", "allowed")
    yield Figure("max_regression_from", limit.origin)


def _notes(now: Speed, baseline: Baseline) -> Iterator[Finding]:
    """The noise, and what changed since the baseline except the speed."""
    then = baseline.speed
    if (noise := baseline.noise) is not None:
        sigma, known, limit = map(percent, (noise.sigma, noise.uncertainty, noise.limit))
        runs = f"{noise.runs} unchanged runs, itself known to {known}"
        yield Finding("note", f"Noise: sigma {sigma} of {runs}; 2.8 sigma is {limit}")
    if then.control is not None and now.control is not None:
        times = f"{seconds(then.control)} -> {seconds(now.control)}"
        control = f"Control, a fixed workload of the CPU: {times}; no verdict depends on it"
        yield Finding("note", control)
    for name, digest in now.artifacts.items():
        if then.artifacts.get(name) != digest:
            reason = f"The package of {name} changed since the baseline"
            yield Finding("note", reason, Where(shard=name), kind="have other packages")
    for key, value in now.state.items():
        if (before := then.state.get(key)) not in (None, value):
            yield Finding("note", f"{key} was {before!r}, is {value!r}")


def _tables(now: Speed, baseline: Baseline | None) -> Iterator[Table]:
    runs = [("now", now, now.seconds), ("confirmed", now, now.confirmation)]
    then = baseline.speed if baseline else now
    if baseline:
        runs.append((f"run {baseline.run}", then, then.seconds))
    rows: list[tuple[Cell, ...]] = [
        (label, speed.figure(m), m, len(rounds), min(rounds), max(rounds))
        for label, speed, rounds in runs
        if rounds
        for m in [median(rounds)]
    ]
    units = {"median": "s", "fastest": "s", "slowest": "s"}
    heads = ("", "speed", "median", "rounds", "fastest", "slowest")
    columns = tuple(Column(head, units.get(head, "")) for head in heads)
    yield Table("", columns, tuple(rows), "runs")
    if baseline and (both := now.profile.keys() & then.profile.keys()):
        lost = sorted(both, key=lambda part: then.profile[part] - now.profile[part])
        columns = (Column("part"), Column("baseline", "s"), Column("now", "s"))
        spent = tuple((part, then.profile[part], now.profile[part]) for part in lost)
        yield Table("parts of a token, before and now", columns, spent, "parts")
    if whole := sum(now.profile.values()):
        parts = tuple(
            (part, now.counts.get(part), rounded(time), rounded(time / whole))
            for part, time in now.profile.items()
        )
        columns = (Column("part"), Column("shards"), Column("time", "s"), Column("share", "%"))
        yield Table("parts of a token", columns, parts, "token", listed=False)
