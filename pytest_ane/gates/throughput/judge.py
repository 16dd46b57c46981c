"""The throughput gate's opinion: the floor, and the regression on the median. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pytest_ane.core.verdict import Status, Verdict
from pytest_ane.gates.throughput.baseline import Baseline, Missing, differences
from pytest_ane.gates.throughput.change import Change
from pytest_ane.gates.throughput.regression import Outcome, weigh
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.stored import RECORD
from pytest_ane.gates.throughput.threshold import DEFAULT, DEFAULT_LOAD, Threshold, threshold
from pytest_ane.gates.throughput.words import details, figure, machine, percent, title
from pytest_ane.manifest import ThroughputPolicy


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
    wrong = [*_untimed(now), *_floor(now, policy)]
    held = _Held("passed")
    if compared or policy.max_regression is not None:
        held = _held(now, baseline, policy, recording=recording)
    warned, unproven = held.outcome == "warned", held.outcome == "unproven"
    failed = bool(wrong) or held.outcome == "failed"
    status: Status = "failed" if failed else "unproven" if unproven else "passed"
    figures = " · ".join(filter(None, (f"{title(now)} {figure(now)}", held.note)))
    return Verdict(
        gate="throughput",
        subject=now.subject,
        status=status,
        summary=f"the machine is slower · {figures}" if warned and not wrong else figures,
        reasons=(*wrong, *([held.says] if held.says and not warned else [])),
        facts=_facts(now) | dict(held.facts) | ({"warnings": 1} if warned else {}),
        details=(
            *([f"warning: {held.says}"] if warned else []),
            # What is no baseline stands in the reasons, unless there are none.
            *details(now, None if unproven else baseline),
        ),
        provenance=now.identity | now.state,
    )


class _Held(NamedTuple):
    """What comparing comes to: an outcome, why, a few words of it, and facts."""

    outcome: Outcome
    says: str = ""
    note: str = ""
    facts: Mapping[str, float | int | str] = MappingProxyType({})


def _held(
    now: Speed, baseline: Baseline | Missing | None, policy: ThroughputPolicy, *, recording: bool
) -> _Held:
    if not isinstance(baseline, Baseline):
        if recording:
            return _Held("passed", note="recorded as the baseline")
        return _Held("unproven", _unproven(baseline), "no baseline")
    if other := differences(now, baseline.speed):
        none = Missing(f"Run {baseline.run} is none: {'; '.join(other)}.")
        return _Held("unproven", _unproven(none))
    limit = threshold(policy, baseline.noise, DEFAULT_LOAD if now.what == "load" else DEFAULT)
    if isinstance(limit, str):
        return _Held("unproven", limit, "no threshold")
    change = Change(now, baseline.speed)
    note = f"{percent(change.share, signed=True)} on run {baseline.run}"
    return _Held(*weigh(change, baseline, limit), note, _compared(baseline, change, limit))


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


def _compared(baseline: Baseline, change: Change, limit: Threshold) -> dict[str, float | int | str]:
    then = baseline.speed
    return {
        "baseline": baseline.run,
        "baseline_seconds": then.median,
        **({} if then.tok_s is None else {"baseline_tok_s": then.tok_s}),
        "change": change.share,
        "machine_slowdown": change.machine,
        "max_regression": limit.share,
        "max_regression_from": limit.origin,
    }
