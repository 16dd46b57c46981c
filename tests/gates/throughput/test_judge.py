"""Verdict of the throughput gate, by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.throughput.baseline import Baseline, Missing
from pytest_ane.gates.throughput.judge import Change, Throughput, is_suspect, judge
from pytest_ane.gates.throughput.noise import DEFAULT, Limit, Noise
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
    now: Speed = THEN,
    baseline: Baseline | Missing | None = None,
    limit: float | Literal["calibrated"] | None = None,
    floor: float | None = None,
    *,
    recording: bool = False,
    compared: bool = False,
) -> Verdict:
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


def test_without_a_comparison_it_passes_with_its_figure() -> None:
    verdict = judged()
    assert (verdict.status, verdict.findings, verdict.subject) == ("passed", (), "smollm2")
    assert verdict.values == {
        "what": "decode", "seconds": 4.0, "rounds": 3, "tokens": 40, "tok_s": 10.0,
        "ms_token": 100.0,
    }  # fmt: skip
    assert verdict.provenance == HERE


def test_a_confirmed_regression_names_everything() -> None:
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


@pytest.mark.parametrize("first", [5.0, 3.0])
@pytest.mark.parametrize("second", [4.0, 4.3, 3.7])
def test_what_the_second_run_does_not_show_is_not_confirmed(first: float, second: float) -> None:
    """Slower or faster: the change is reported, and passes."""
    assert suspect(speed(first))
    verdict = judged(confirmed(speed(first), second), against(), 0.1)
    assert verdict.status == "passed"
    again = verdict.figure("confirmed_change")
    assert again.label == "not confirmed"
    assert all(figure.passes for figure in verdict.figures)


def test_improvements_are_confirmed_by_the_same_rule() -> None:
    verdict = judged(confirmed(speed(3.2), 3.3), against(), 0.1)
    assert verdict.status == "passed"
    again = verdict.figure("confirmed_change")
    assert (again.label, again.value) == ("confirmed", pytest.approx(4 / 3.3 - 1))
    verdict = judged(confirmed(speed(5.0), 3.0), against(), 0.1)
    assert verdict.status == "passed"
    again = verdict.figure("confirmed_change")
    assert (again.label, again.value) == ("not confirmed", pytest.approx(1 / 3))


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


@pytest.mark.drawn
@pytest.mark.slow
def test_by_chance_one_case_in_229_is_a_confirmed_regression() -> None:
    """Normal noise of 0.1 %, the limit at 2.8 sigma, run and confirmation on one baseline."""
    draw, cases = np.random.default_rng(0).normal(1, 0.001, (3, 200_000)), 0
    for then, first, second in draw.T:
        shares = (first / then - 1, second / then - 1)
        cases += Change(shares, None, Limit(0.0028, ""), against(), is_load=True).is_regression
    assert 229 * 0.9 < 200_000 / cases < 229 * 1.1


def test_a_load_is_compared_in_seconds_and_may_take_twice_as_long() -> None:
    then = speed(1.0, what="load", subject="smollm2:L01", tokens=0)
    now = then.model_copy(update={"seconds": (1.3,)})
    verdict = judged(now, against(then), 0.2, floor=100.0)
    assert [finding.figure for finding in verdict.reasons] == ["change"]
    change = verdict.figure("change")
    assert (change.value, change.limit, change.good) == (pytest.approx(0.3), 0.2, "below")
    assert "tok_s" not in verdict.values
    faster = then.model_copy(update={"seconds": (0.5,)})
    assert judged(faster, against(then), 0.2).status == "passed"
    then = speed(1.0, what="load", tokens=0)
    near, far = (speed(seconds, what="load", tokens=0) for seconds in (1.99, 2.01))
    assert judged(near, against(then), compared=True).status == "passed"
    verdict = judged(far, against(then), compared=True)
    assert (verdict.status, verdict.values["max_regression"]) == ("failed", 1.0)
    assert judged(near, against(then), 0.9).status == "failed"


@pytest.mark.parametrize(("tokens", "title"), [(1, "T=1"), (64, "T=64")])
def test_calls_name_their_positions(tokens: int, title: str) -> None:
    now = speed(0.5, what="call", subject="smollm2:L01", tokens=tokens)
    figure = judged(now).figure("tok_s")
    assert figure.label == title


@pytest.mark.parametrize("seconds", [5.0, 4.0])
@pytest.mark.parametrize("control", [1e-3, 2e-3, 8e-3])
def test_the_control_workload_is_shown_and_excuses_nothing(seconds: float, control: float) -> None:
    now, then = speed(seconds, control=control), speed(4.0, control=2e-3)
    verdict = judged(now, against(then), 0.05)
    assert verdict.status == judged(speed(seconds), against(), 0.05).status
    figure = verdict.figure("control_change")
    assert (figure.value, figure.shown) == (pytest.approx(2e-3 / control - 1), True)
    assert "control_change" not in judged(now, against(), 0.05).values


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
    "then",
    [
        speed(4.0, identity=THERE),
        speed(4.0, tokens=20),
        speed(4.0, prompt=(2, 42)),
        speed(4.0, subject="other"),
        speed(4.0, what="call"),
        speed(4.0, identity={}),
    ],
    ids=["machine", "tokens", "prompt", "subject", "what", "unknown"],
)
def test_what_is_not_comparable_is_not_compared(then: Speed) -> None:
    verdict = judged(baseline=against(then), limit=0.05)
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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("confirmation", [(), (math.nan,)])
def test_nan_fails(bad: float, confirmation: tuple[float, ...]) -> None:
    update: dict[str, Any] = {"seconds": (bad,), "confirmation": confirmation}
    now = THEN.model_copy(update=update)
    assert judged(now, against(), 0.05, floor=1.0).status == "failed"
    assert len(judged(now, against(), 0.05).reasons) == 2
    assert judge(Throughput(now), ThroughputPolicy(), "smollm2").status == "failed"
    load = speed(1.0, what="load", tokens=0)
    assert judged(load.model_copy(update=update), against(load), 0.05).status == "failed"
