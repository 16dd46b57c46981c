"""Verdict of the throughput gate: the floor, and the change against the baseline. Reads no file.

A benchmark is timed in a fixed number of rounds. A change beyond the limit, in either direction,
and a speed below the floor are suspected: the benchmark is timed once more, in as many rounds. What
both runs show is confirmed; a confirmed regression fails, and so does a floor that both miss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.baseline import Baseline, Missing, differences
from pytest_ane.gates.throughput.noise import Limit, limit_of
from pytest_ane.gates.throughput.speed import Speed, percent, seconds
from pytest_ane.gates.throughput.stored import RECORD
from pytest_ane.manifest import ThroughputPolicy


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
    """A speed against its baseline.

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

    @classmethod
    def of(cls, now: Speed, baseline: Baseline, limit: Limit) -> Change:
        """`q - 1`, with the medians m and b of run and baseline: q = b / m, of a load m / b."""

        def share(m: float, b: float) -> float:
            return b / m - 1 if now.tokens else m / b - 1

        then = baseline.speed
        control = share(now.control, then.control) if now.control and then.control else None
        shares = tuple(share(m, then.median) for m in now.medians)
        return cls(shares, control, limit, baseline, not now.tokens)

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

    def __str__(self) -> str:
        """`-12.4 % on run 0003 · confirmed -12.1 % · control +0.3 %`."""
        known = "confirmed" if self.is_regression or self.is_improvement else "not confirmed"
        notes = [f"{percent(self.shares[0], signed=True)} on run {self.baseline.run}"]
        notes += [f"{known} {percent(share, signed=True)}" for share in self.shares[1:]]
        if self.control is not None:
            notes.append(f"control {percent(self.control, signed=True)}")
        return " · ".join(notes)


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
    if not isinstance(baseline, Baseline):
        if timed.recording:
            return None
        return _no_baseline(baseline.why if baseline else "Nothing is stored.")
    if other := differences(now, baseline.speed):
        return _no_baseline(f"Run {baseline.run} is no baseline: {'; '.join(other)}.")
    limit = limit_of(policy, baseline.noise, now.what)
    return Missing(limit) if isinstance(limit, str) else Change.of(now, baseline, limit)


def judge(timed: Throughput, policy: ThroughputPolicy, subject: str) -> Verdict:
    """Passes if the policy sets neither floor nor limit, or both hold.

    Args:
        timed: the benchmark, its confirmation included.
        policy: the shard's or the model's.
        subject: qualified shard or model.
    """
    now, change = timed.speed, compare(timed, policy)
    wrong = [*_untimed(now), *_floor(now, policy)]
    if isinstance(change, Change) and change.is_regression:
        wrong.append(_regression(now, change))
    missing = change if isinstance(change, Missing) else None
    note = "" if change is None else "not compared" if missing else str(change)
    if timed.recording and isinstance(timed.baseline, Missing):
        note = "recorded as the baseline"
    return Verdict(
        gate="throughput",
        subject=subject,
        status="failed" if wrong else "unproven" if missing else "passed",
        summary=" · ".join(filter(None, (f"{now.title} {now.figure()}", note))),
        reasons=(*wrong, *([missing.why] if missing else [])),
        facts=_facts(now) | (_compared(change) if isinstance(change, Change) else {}),
        # Why nothing is compared stands in the reasons already.
        details=tuple(_details(now, None if missing else timed.baseline)),
        provenance=now.identity | now.state,
    )


def _no_baseline(why: str) -> Missing:
    return Missing(f"{why} Record a baseline of this machine with: {RECORD}")


def _untimed(now: Speed) -> Iterator[str]:
    if not (math.isfinite(now.median) and now.median > 0):
        yield f"{now.title.capitalize()}: the median round takes {now.median} s."


def _floor(now: Speed, policy: ThroughputPolicy) -> Iterator[str]:
    """A sentence if every run is below `min-tok-s`; NaN is below."""
    least = policy.min_tok_s
    if least is None or now.what == "load":
        return
    if not now.tokens:
        yield f"A round computes no token, so min-tok-s = {least:g} was not tested."
    elif not any(now.tokens / median >= least for median in now.medians if median > 0):
        yield (
            f"{now.title.capitalize()} reaches {_runs(now)}, below policy.throughput.min-tok-s = "
            f"{least:g}, on {now.machine}."
        )


def _runs(now: Speed) -> str:
    """`10.00 tok/s`, followed by the confirmation."""
    first, *confirmation = map(now.figure, now.medians)
    return first + "".join(f" ({figure} when confirmed)" for figure in confirmation)


def _regression(now: Speed, change: Change) -> str:
    baseline, limit = change.baseline, change.limit
    first, *confirmation = (percent(share, signed=True) for share in change.shares)
    also = "".join(f" ({share} when confirmed)" for share in confirmation)
    date = f" of {baseline.when}" if baseline.when else ""
    return (
        f"{now.title.capitalize()}: {now.figure()} is {first}{also} on the baseline's "
        f"{baseline.speed.figure()} (run {baseline.run}{date}), and {percent(limit.share)} is "
        f"allowed ({limit.origin}), on {now.machine}."
    )


def _facts(now: Speed) -> dict[str, float | int | str]:
    facts: dict[str, float | int | str] = {
        "what": now.what, "seconds": now.median, "rounds": len(now.seconds), "tokens": now.tokens,
    }  # fmt: skip
    if now.tok_s is not None:
        facts |= {"tok_s": now.tok_s, "ms_token": 1000 * now.median / now.tokens}
    return facts | ({} if now.control is None else {"control_seconds": now.control})


def _compared(change: Change) -> dict[str, float | int | str]:
    then = change.baseline.speed
    facts: dict[str, float | int | str | None] = {
        "baseline": change.baseline.run,
        "baseline_seconds": then.median,
        "baseline_tok_s": then.tok_s,
        "change": change.shares[0],
        "confirmed_change": change.shares[1] if len(change.shares) > 1 else None,
        "control_change": change.control,
        "max_regression": change.limit.share,
        "max_regression_from": change.limit.origin,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _details(now: Speed, baseline: Baseline | Missing | None) -> Iterator[str]:
    """The figures behind the verdict, and what changed since the baseline except the speed."""
    for label, rounds, median in zip(
        ("now", "confirmed"), (now.seconds, now.confirmation), now.medians, strict=False
    ):
        yield (
            f"{label:<9} {now.figure(median)}: median {seconds(median)} of {len(rounds)} rounds, "
            f"{seconds(min(rounds))} to {seconds(max(rounds))}"
        )
    if isinstance(baseline, Missing):
        yield baseline.why
    if not isinstance(baseline, Baseline):
        return
    then = baseline.speed
    yield f"baseline  {then.figure()}: median {seconds(then.median)}, run {baseline.run}"
    if (noise := baseline.noise) is not None:
        yield (
            f"noise     sigma {percent(noise.sigma)} of {noise.runs} unchanged runs, itself known "
            f"to {percent(noise.uncertainty)}; 2.8 sigma is {percent(noise.limit)}"
        )
    if then.control is not None and now.control is not None:
        yield (
            f"control   {seconds(then.control)} -> {seconds(now.control)} for a fixed workload of "
            "the CPU; shown only, no verdict depends on it"
        )
    yield from _parts(now.profile, then.profile)
    if changed := [n for n, digest in now.artifacts.items() if then.artifacts.get(n) != digest]:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        yield f"packages changed since: {', '.join(changed[:5])}{more}"
    for key, value in now.state.items():
        if (before := then.state.get(key)) not in (None, value):
            yield f"{key} was {before!r}, is {value!r}"


def _parts(now: Mapping[str, float], then: Mapping[str, float]) -> Iterator[str]:
    """Parts that both have, the one that lost most time first."""
    both = sorted(now.keys() & then.keys(), key=lambda part: then[part] - now[part])
    for part in both:
        yield f"{part:<9} {seconds(then[part])} -> {seconds(now[part])}"
