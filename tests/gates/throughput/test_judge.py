"""Verdict of the throughput gate, by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.throughput.baseline import DEFAULT, Baseline, Missing, Noise
from pytest_ane.gates.throughput.judge import Throughput, is_suspect, judge
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import ThroughputPolicy
from tests.gates.throughput.runs import HERE, THERE, slower, speed

THEN = speed(4.0, 4.1, 3.9)  # 10 tok/s
QUIET = Noise(
    what="decode", subject="smollm2", tokens=40, medians=(4.0, 4 / 0.99, 4 / 1.01)
)  # sigma 1 %
MISSING = Missing("The stored run 0001 is no baseline: it is of another machine.")
SECONDS = st.floats(1e-3, 1e3)


def judged(
    now: Speed = THEN, baseline: Baseline | Missing | None = None,
    limit: float | Literal["calibrated"] | None = None, floor: float | None = None, *,
    recording: bool = False, compared: bool = False,
) -> Verdict:  # fmt: skip
    policy = ThroughputPolicy(max_regression=limit, min_tok_s=floor)
    timed = Throughput(now, baseline, recording=recording, compared=compared)
    verdict = judge(timed, policy, now.subject)
    # A confirmation is asked for wherever the first run alone would fail.
    assert verdict.status != "failed" or now.confirmation or is_suspect(timed, policy)
    return verdict


def against(then: Speed = THEN, noise: Noise | None = None) -> Baseline:
    return Baseline(then, "0003", "2026-11-20", noise)


def confirmed(now: Speed, *seconds: float) -> Speed:
    return now.model_copy(update={"confirmation": seconds})


def suspect(now: Speed, limit: float = 0.1, floor: float | None = None) -> bool:
    policy = ThroughputPolicy(max_regression=limit, min_tok_s=floor)
    return is_suspect(Throughput(now, against()), policy)


def notes(verdict: Verdict) -> list[str]:
    return [finding.reason for finding in verdict.findings if finding.severity == "note"]


def test_a_confirmed_regression_names_everything() -> None:
    verdict = judged()
    assert (verdict.status, verdict.findings, verdict.provenance) == ("passed", (), HERE)
    assert verdict.values == {
        "what": "decode", "seconds": 4.0, "rounds": 3, "tokens": 40, "tok_s": 10.0,
        "ms_token": 100.0,
    }  # fmt: skip
    verdict = judged(confirmed(slower(THEN, 0.124), 5.0, 4.0, 9.0), against(), 0.05)
    (finding,) = verdict.reasons
    assert (finding.severity, finding.figure) == ("failed", "change")
    change = verdict.figure("change")
    assert (change.value, change.limit, change.passes) == (pytest.approx(-0.124), -0.05, False)
    assert verdict.values["confirmed_change"] == pytest.approx(-0.2)
    assert verdict.values["baseline"] == "0003"
    assert verdict.values["baseline_tok_s"] == 10.0
    assert verdict.values["max_regression"] == 0.05
    assert [row[0] for row in verdict.tables[0].rows] == ["now", "confirmed", "run 0003"]
    assert verdict.tables[0].rows[1][2:] == (5.0, 3, 4.0, 9.0)
    # The control workload is shown, and excuses nothing.
    now, then = speed(5.0, control=8e-3), speed(4.0, control=2e-3)
    slow = judged(now, against(then), 0.05)
    assert (slow.status, slow.values["control_change"]) == ("failed", pytest.approx(-0.75))


@pytest.mark.parametrize(
    ("seconds", "compared", "limit", "status"),
    [
        (1.3, False, 0.2, "failed"), (0.5, False, 0.2, "passed"), (1.99, False, 0.9, "failed"),
        # Without a limit it may take twice as long.
        (1.99, True, None, "passed"), (2.01, True, None, "failed"),
        (math.nan, False, 0.2, "failed"), (math.inf, False, 0.2, "failed"),
    ],
)  # fmt: skip
def test_a_load_is_compared_in_seconds(
    seconds: float, compared: bool, limit: float | None, status: str
) -> None:
    then = speed(1.0, what="load", subject="smollm2:L01", tokens=0)
    now = then.model_copy(update={"seconds": (seconds,)})
    verdict = judged(now, against(then), limit, floor=100.0, compared=compared)
    assert (verdict.status, verdict.figure("change").good) == (status, "below")
    assert "tok_s" not in verdict.values


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("confirmation", [(), (math.nan,)])
def test_nan_fails(bad: float, confirmation: tuple[float, ...]) -> None:
    now = THEN.model_copy(update={"seconds": (bad,), "confirmation": confirmation})
    assert judged(now, against(), 0.05, floor=1.0).status == "failed"
    assert len(judged(now, against(), 0.05).reasons) == 2
    assert judge(Throughput(now), ThroughputPolicy(), "smollm2").status == "failed"


@pytest.mark.parametrize(
    ("first", "second", "known"),
    [
        *((first, second, "not confirmed") for first in (5.0, 3.0) for second in (4.0, 4.3, 3.7)),
        (3.2, 3.3, "confirmed"), (5.0, 3.0, "not confirmed"),
    ],
)  # fmt: skip
def test_a_change_is_confirmed_by_a_second_run(first: float, second: float, known: str) -> None:
    """Slower or faster: the change is reported, and passes."""
    assert suspect(speed(first))
    verdict = judged(confirmed(speed(first), second), against(), 0.1)
    assert verdict.status == "passed"
    again = verdict.figure("confirmed_change")
    assert (again.label, again.value) == (known, pytest.approx(4 / second - 1))
    assert all(figure.passes for figure in verdict.figures)


@given(first=SECONDS, second=SECONDS, limit=st.floats(0, 0.99), tokens=st.integers(0, 64))
def test_red_where_both_runs_are_slower_and_suspect_either_way(
    first: float, second: float, limit: float, tokens: int
) -> None:
    then = speed(1.0, tokens=tokens)
    now = speed(first, tokens=tokens, confirmation=(second,))
    policy = ThroughputPolicy(max_regression=limit)

    def change(seconds: float) -> float:
        return 1 / seconds - 1 if tokens else seconds - 1

    slowdowns = [change(s) * (-1 if tokens else 1) for s in (first, second)]
    if all(abs(abs(slowdown) - limit) > 1e-9 for slowdown in slowdowns):
        red = all(slowdown > limit for slowdown in slowdowns)
        assert (judged(now, against(then), limit).status == "failed") is red
        alone = Throughput(now.model_copy(update={"confirmation": ()}), against(then))
        assert is_suspect(alone, policy) is (abs(slowdowns[0]) > limit)


def test_without_a_baseline_it_is_unproven_unless_it_records() -> None:
    verdict = judged(baseline=MISSING, compared=True)
    assert verdict.status == "unproven"
    (finding,) = verdict.reasons
    assert finding.reason == MISSING.why.rstrip(".")
    assert "--benchmark-autosave" in finding.remedy
    assert judged(baseline=None, limit=0.05).status == "unproven"
    verdict = judged(baseline=MISSING, limit=0.05, recording=True)
    assert verdict.status == "passed"
    assert verdict.values["recorded"] == "recorded as the baseline"
    assert MISSING.why.rstrip(".") in notes(verdict)
    assert judged(slower(THEN, 0.5), against(), 0.05, recording=True).status == "failed"


@pytest.mark.parametrize(
    "other",
    [{"identity": THERE}, {"tokens": 20}, {"prompt": (2, 42)}, {"subject": "other"},
     {"what": "call"}, {"identity": {}}],
    ids=["machine", "tokens", "prompt", "subject", "what", "unknown"],
)  # fmt: skip
def test_what_is_not_comparable_is_not_compared(other: dict[str, Any]) -> None:
    verdict = judged(baseline=against(speed(4.0, **other)), limit=0.05)
    assert verdict.status == "unproven"
    assert "change" not in verdict.values


def test_other_packages_are_compared_and_named() -> None:
    digests = {f"L{i:02}": "a" for i in range(8)}
    then = speed(4.0, artifacts=digests, state={"power": "AC", "load": "0.1"})
    state = {"power": "battery", "load": "0.1"}
    verdict = judged(speed(4.0, artifacts=digests | {"L01": "c"}, state=state), against(then), 0.05)
    assert verdict.status == "passed"
    assert [f.where.shard for f in verdict.findings if f.kind] == ["L01"]
    assert "power was 'AC', is 'battery'" in notes(verdict)
    assert not any("load" in note for note in notes(verdict))
    many = judged(speed(4.0, artifacts=dict.fromkeys(digests, "b")), against(then), 0.05)
    assert [f.where.shard for f in many.findings if f.kind] == list(digests)


def test_parts_of_a_token_s_time() -> None:
    then = speed(4.0, profile={"block": 0.08, "head": 0.005, "host": 0.001})
    now = speed(5.0, profile={"block": 0.08, "head": 0.03, "mixture": 0.1})
    parts = judged(now, against(then), 0.05).table("parts")
    assert parts.rows == (("head", 0.005, 0.03), ("block", 0.08, 0.08))
    now = speed(4.0, profile={"block": 0.06, "host": 0.02}, counts={"block": 30})
    table = judged(now).table("token")
    assert not table.listed
    assert table.rows == (("block", 30, 0.06, 0.75), ("host", None, 0.02, 0.25))
    assert judged().table("token") is None


def test_the_floor_holds_always_and_is_confirmed_too() -> None:
    verdict = judged(floor=12.0)
    assert [finding.figure for finding in verdict.reasons] == ["tok_s"]
    figure = verdict.figure("tok_s")
    assert (figure.value, figure.limit) == (10.0, 12.0)
    assert judged(confirmed(THEN, 3.5), floor=12.0).status == "failed"
    kept = judged(confirmed(THEN, 3.0), floor=12.0)
    assert kept.status == "passed"
    assert all(figure.passes for figure in kept.figures)
    assert judged(floor=10.0).status == "passed"
    both = judged(slower(THEN, 0.5), against(), 0.05, floor=12.0)
    assert len(both.reasons) == 2
    missing = judged(baseline=MISSING, compared=True, floor=12.0)
    assert (missing.status, len(missing.reasons)) == ("failed", 2)
    assert judged(speed(4.0, tokens=0), floor=1.0).status == "failed"


def test_limits_and_where_they_come_from() -> None:
    now = slower(THEN, 0.04)
    assert judged(now, against(noise=QUIET), 0.05).status == "passed"
    tight = judged(now, against(noise=QUIET), "calibrated")
    assert tight.status == "failed"
    assert tight.values["max_regression"] == pytest.approx(0.028, rel=0.01)
    assert "2.8 sigma of 3 unchanged runs" in str(tight.values["max_regression_from"])
    assert judged(now, against(noise=QUIET), compared=True).status == "failed"
    assert any(note.startswith("Noise: sigma 1 %") for note in notes(tight))
    loose = judged(now, against(), compared=True)
    assert (loose.status, loose.values["max_regression"]) == ("passed", DEFAULT)
    assert judged(now, against(), "calibrated").status == "unproven"
    wild = QUIET.model_copy(update={"medians": (1.0, 4.0, 9.0)})
    assert judged(THEN, against(noise=wild), "calibrated").status == "unproven"
