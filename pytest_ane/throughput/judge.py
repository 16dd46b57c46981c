"""The throughput gate's opinion: the floor, and the regression on the median. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_ane.manifest import ThroughputPolicy
from pytest_ane.manifest.throughput import CALIBRATED
from pytest_ane.throughput.baseline import Baseline, Missing, differences
from pytest_ane.throughput.noise import COMMAND, Noise
from pytest_ane.throughput.speed import Speed
from pytest_ane.throughput.stored import RECORD
from pytest_ane.throughput.words import details, figure, machine, percent, title
from pytest_ane.verdict import Status, Verdict

DEFAULT, DEFAULT_LOAD = 0.25, 1.0
"""Regression that `--benchmark-compare` takes where neither policy nor calibration says one.

A load mostly asks the system for memory, and how soon it gets some differs by half from run to run.
"""

_BLIND = 0.5
"""Noise from which on a run of half the speed could pass."""


@dataclass(frozen=True)
class Threshold:
    """How much slower is too slow.

    Attributes:
        share: of tok/s, or of a load's seconds.
        origin: where it comes from, for people.
    """

    share: float
    origin: str


def judge(
    now: Speed,
    baseline: Baseline | Missing | None,
    policy: ThroughputPolicy,
    *,
    recording: bool,
    compared: bool,
) -> Verdict:
    """Passed if nothing was asked, or the floor holds and the speed is no regression.

    Args:
        now: what was measured.
        baseline: what `find` gave; None where nobody looked.
        policy: the shard's or the model's.
        recording: whether this run is stored, and so is a baseline itself.
        compared: whether `--benchmark-compare` was given; `max-regression` asks for it, too.
    """
    wrong, unproven, facts = [*_untimed(now), *_floor(now, policy)], [], _facts(now)
    summary = f"{title(now)} {figure(now)}"
    noise = baseline.noise if isinstance(baseline, Baseline) else None
    limit = threshold(policy, noise, DEFAULT_LOAD if now.what == "load" else DEFAULT)
    if not (compared or policy.max_regression is not None):
        pass
    elif not isinstance(baseline, Baseline):
        summary += " · recorded as the baseline" if recording else " · no baseline"
        unproven += [] if recording else [_unproven(baseline)]
    elif other := differences(now, baseline.speed):
        unproven.append(_unproven(Missing(f"Run {baseline.run} is none: {'; '.join(other)}.")))
    elif isinstance(limit, str):
        summary, unproven = f"{summary} · no threshold", [limit]
    else:
        change = change_of(now, baseline.speed)
        facts |= _compared(baseline, change, limit)
        summary += f" · {percent(change, signed=True)} on run {baseline.run}"
        # Written so that NaN is a regression.
        if not slowdown(now, change) <= limit.share:
            wrong.append(_regression(now, baseline, change, limit))
    status: Status = "failed" if wrong else "unproven" if unproven else "passed"
    return Verdict(
        gate="throughput",
        subject=now.subject,
        status=status,
        summary=summary,
        reasons=(*wrong, *unproven),
        facts=facts,
        # What is no baseline stands in the reasons, unless there are none.
        details=tuple(details(now, None if unproven else baseline)),
        provenance=now.identity | now.state,
    )


def threshold(
    policy: ThroughputPolicy, noise: Noise | None, default: float = DEFAULT
) -> Threshold | str:
    """The policy's number, else the calibrated noise, else a default; or why there is none."""
    asked = policy.max_regression
    if isinstance(asked, float):
        return Threshold(asked, "policy.throughput.max-regression")
    if noise is None:
        if asked == CALIBRATED:
            return (
                "policy.throughput.max-regression is calibrated, and this machine's noise is not "
                f"known; measure it with: {COMMAND}"
            )
        return Threshold(default, f"the default; {COMMAND} measures this machine's noise")
    if not noise.limit < _BLIND:
        return (
            f"Unchanged runs differ by sigma = {percent(noise.sigma)} ({noise.runs} runs), so half "
            f"the speed could pass for noise; quieten the machine, and repeat: {COMMAND}"
        )
    return Threshold(noise.limit, f"2.8 sigma of {noise.runs} unchanged runs, {COMMAND}")


def change_of(now: Speed, then: Speed) -> float:
    """Change of tok/s as a share, -0.1 for a tenth less; for loads of seconds, 0.1 for more."""
    if now.tok_s is None:
        return now.median / then.median - 1
    return then.median / now.median - 1


def slowdown(now: Speed, change: float) -> float:
    """The change as how much worse it is: positive is slower."""
    return change if now.tok_s is None else -change


def _untimed(now: Speed) -> Iterator[str]:
    if not (math.isfinite(now.median) and now.median > 0):
        yield f"{title(now).capitalize()}: the median round takes {now.median} s."


def _floor(now: Speed, policy: ThroughputPolicy) -> Iterator[str]:
    least = policy.min_tok_s
    if least is None or now.what == "load":
        return
    if now.tok_s is None:
        yield f"A round computes no token, so min-tok-s = {least:g} was not tested."
    elif not (math.isfinite(now.tok_s) and now.tok_s >= least):
        yield (
            f"{title(now).capitalize()} reaches {figure(now)}, below policy.throughput.min-tok-s = "
            f"{least:g}, on {machine(now)}."
        )


def _regression(now: Speed, baseline: Baseline, change: float, limit: Threshold) -> str:
    then, date = baseline.speed, f" of {baseline.when}" if baseline.when else ""
    return (
        f"{title(now).capitalize()}: {figure(now)} is {percent(change, signed=True)} on the "
        f"baseline's {figure(then)} (run {baseline.run}{date}), and {percent(limit.share)} is "
        f"allowed ({limit.origin}), on {machine(now)}."
    )


def _unproven(baseline: Missing | None) -> str:
    why = baseline.why if baseline else "Nothing is stored."
    return f"{why} Record a baseline of this machine with: {RECORD}"


def _facts(now: Speed) -> dict[str, float | int | str]:
    facts: dict[str, float | int | str] = {
        "what": now.what, "seconds": now.median, "rounds": len(now.seconds), "tokens": now.tokens,
    }  # fmt: skip
    if now.tok_s is not None:
        facts |= {"tok_s": now.tok_s, "ms_token": 1000 * now.median / now.tokens}
    return facts


def _compared(baseline: Baseline, change: float, limit: Threshold) -> dict[str, float | int | str]:
    then = baseline.speed
    return {
        "baseline": baseline.run,
        "baseline_seconds": then.median,
        **({} if then.tok_s is None else {"baseline_tok_s": then.tok_s}),
        "change": change,
        "max_regression": limit.share,
        "max_regression_from": limit.origin,
    }
