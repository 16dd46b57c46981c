"""Verdict of the throughput gate, by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.baseline import Baseline, Missing
from pytest_ane.gates.throughput.judge import Change, Throughput, is_suspect, judge
from pytest_ane.gates.throughput.noise import DEFAULT, Limit, Noise
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.manifest import ThroughputPolicy
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


def test_without_a_comparison_it_passes_with_its_figure() -> None:
    verdict = judged()
    assert (verdict.status, verdict.summary) == ("passed", "decoding 10.00 tok/s")
    assert verdict.subject == "smollm2"
    assert verdict.facts == {
        "what": "decode", "seconds": 4.0, "rounds": 3, "tokens": 40, "tok_s": 10.0,
        "ms_token": 100.0,
    }  # fmt: skip
    assert verdict.provenance == HERE


def test_a_confirmed_regression_names_everything() -> None:
    verdict = judged(confirmed(slower(THEN, 0.124), 5.0, 4.0, 9.0), against(), 0.05)
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "Decoding: 8.76 tok/s is -12.4 % (-20 % when confirmed) on the baseline's 10.00 tok/s "
        "(run 0003 of 2026-11-20), and 5 % is allowed (policy.throughput.max-regression), on "
        "Apple M4 Max, macOS 26.1, coreml, CPU_AND_NE.",
    )
    assert verdict.summary == "decoding 8.76 tok/s · -12.4 % on run 0003 · confirmed -20 %"
    assert verdict.facts["change"] == pytest.approx(-0.124)
    assert verdict.facts["confirmed_change"] == pytest.approx(-0.2)
    assert verdict.facts["baseline"] == "0003"
    assert verdict.facts["baseline_tok_s"] == 10.0
    assert verdict.facts["max_regression"] == 0.05
    assert verdict.details[1] == (
        "confirmed 8.00 tok/s: median 5.00 s of 3 rounds, 4.00 s to 9.00 s"
    )


@pytest.mark.parametrize("first", [5.0, 3.0])
@pytest.mark.parametrize("second", [4.0, 4.3, 3.7])
def test_what_the_second_run_does_not_show_is_not_confirmed(first: float, second: float) -> None:
    """Slower or faster: the change is reported, and passes."""
    assert suspect(speed(first))
    verdict = judged(confirmed(speed(first), second), against(), 0.1)
    assert verdict.status == "passed"
    assert " · not confirmed " in verdict.summary


def test_an_improvement_is_confirmed_by_the_same_rule() -> None:
    verdict = judged(confirmed(speed(3.2), 3.3), against(), 0.1)
    assert verdict.status == "passed"
    assert verdict.summary == "decoding 12.50 tok/s · +25 % on run 0003 · confirmed +21.2 %"


def test_slower_then_faster_is_neither() -> None:
    verdict = judged(confirmed(speed(5.0), 3.0), against(), 0.1)
    assert verdict.status == "passed"
    assert " · not confirmed +33.3 %" in verdict.summary


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


def test_by_chance_one_case_in_229_is_a_confirmed_regression() -> None:
    """Normal noise of 0.1 %, the limit at 2.8 sigma, run and confirmation on one baseline."""
    draw, cases = np.random.default_rng(0).normal(1, 0.001, (3, 200_000)), 0
    for then, first, second in draw.T:
        shares = (first / then - 1, second / then - 1)
        cases += Change(shares, None, Limit(0.0028, ""), against(), is_load=True).is_regression
    assert 229 * 0.9 < 200_000 / cases < 229 * 1.1


def test_a_load_is_compared_in_seconds() -> None:
    then = speed(1.0, what="load", subject="smollm2:L01", tokens=0)
    now = then.model_copy(update={"seconds": (1.3,)})
    verdict = judged(now, against(then), 0.2, floor=100.0)
    assert verdict.reasons == (
        "Load: 1.30 s is +30 % on the baseline's 1.00 s (run 0003 of 2026-11-20), and 20 % is "
        "allowed (policy.throughput.max-regression), on Apple M4 Max, macOS 26.1, coreml, "
        "CPU_AND_NE.",
    )
    assert "tok_s" not in verdict.facts
    faster = then.model_copy(update={"seconds": (0.5,)})
    assert judged(faster, against(then), 0.2).status == "passed"


@pytest.mark.parametrize(("tokens", "title"), [(1, "T=1"), (64, "T=64")])
def test_calls_say_their_positions(tokens: int, title: str) -> None:
    now = speed(0.5, what="call", subject="smollm2:L01", tokens=tokens)
    assert judged(now).summary.startswith(f"{title} ")


def test_a_load_may_take_twice_as_long_unless_the_policy_says_otherwise() -> None:
    then = speed(1.0, what="load", tokens=0)
    near, far = (speed(seconds, what="load", tokens=0) for seconds in (1.99, 2.01))
    assert judged(near, against(then), compared=True).status == "passed"
    (reason,) = judged(far, against(then), compared=True).reasons
    assert "and 100 % is allowed (the default;" in reason
    assert judged(near, against(then), 0.9).status == "failed"


@pytest.mark.parametrize("seconds", [5.0, 4.0])
@pytest.mark.parametrize("control", [1e-3, 2e-3, 8e-3])
def test_the_control_workload_is_shown_and_excuses_nothing(seconds: float, control: float) -> None:
    now, then = speed(seconds, control=control), speed(4.0, control=2e-3)
    verdict = judged(now, against(then), 0.05)
    assert verdict.status == judged(speed(seconds), against(), 0.05).status
    change = 2e-3 / control - 1
    assert verdict.facts["control_change"] == pytest.approx(change)
    assert verdict.summary.endswith(f" · control {100 * change:+.3g} %")
    assert any(line.startswith("control   2 ms -> ") for line in verdict.details)
    assert "control_change" not in judged(now, against(), 0.05).facts


def test_without_a_baseline_it_is_unproven() -> None:
    verdict = judged(baseline=MISSING, compared=True)
    assert verdict.status == "unproven"
    assert verdict.reasons == (
        "The stored run 0001 is no baseline: it is of another machine. Record a baseline of this "
        "machine with: pytest -m bench --ane-shards=all --benchmark-autosave",
    )
    assert verdict.summary == "decoding 10.00 tok/s · not compared"
    assert len(verdict.details) == 1
    assert judged(baseline=None, limit=0.05).status == "unproven"


def test_a_run_that_records_is_its_own_baseline() -> None:
    verdict = judged(baseline=MISSING, limit=0.05, recording=True)
    assert verdict.status == "passed"
    assert verdict.summary == "decoding 10.00 tok/s · recorded as the baseline"
    assert MISSING.why in verdict.details
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
    assert "change" not in verdict.facts


def test_other_packages_are_compared_and_named() -> None:
    digests = {f"L{i:02}": "a" for i in range(8)}
    then = speed(4.0, artifacts=digests, state={"power": "AC", "load": "0.1"})
    state = {"power": "battery", "load": "0.1"}
    verdict = judged(speed(4.0, artifacts=digests | {"L01": "c"}, state=state), against(then), 0.05)
    assert verdict.status == "passed"
    assert "packages changed since: L01" in verdict.details
    assert "power was 'AC', is 'battery'" in verdict.details
    assert not any("load" in line for line in verdict.details)
    many = judged(speed(4.0, artifacts=dict.fromkeys(digests, "b")), against(then), 0.05)
    assert "packages changed since: L00, L01, L02, L03, L04 and 3 more" in many.details


def test_the_part_that_lost_most_comes_first() -> None:
    then = speed(4.0, profile={"block": 0.08, "head": 0.005, "host": 0.001})
    now = speed(5.0, profile={"block": 0.08, "head": 0.03, "mixture": 0.1})
    details = judged(now, against(then), 0.05).details
    assert [line for line in details if "->" in line] == [
        "head      5 ms -> 30 ms",
        "block     80 ms -> 80 ms",
    ]


def test_the_floor_holds_always_and_is_confirmed_too() -> None:
    verdict = judged(floor=12.0)
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "Decoding reaches 10.00 tok/s, below policy.throughput.min-tok-s = 12, on Apple M4 Max, "
        "macOS 26.1, coreml, CPU_AND_NE.",
    )
    assert "10.00 tok/s (11.43 tok/s when confirmed)" in judged(
        confirmed(THEN, 3.5), floor=12.0
    ).reasons[0]  # fmt: skip
    assert judged(confirmed(THEN, 3.0), floor=12.0).status == "passed"
    assert judged(floor=10.0).status == "passed"
    both = judged(slower(THEN, 0.5), against(), 0.05, floor=12.0)
    assert len(both.reasons) == 2
    missing = judged(baseline=MISSING, compared=True, floor=12.0)
    assert (missing.status, len(missing.reasons)) == ("failed", 2)


def test_a_floor_for_no_tokens_is_not_passed() -> None:
    assert judged(speed(4.0, tokens=0), floor=1.0).status == "failed"


def test_limits_and_where_they_come_from() -> None:
    now = slower(THEN, 0.04)
    assert judged(now, against(noise=QUIET), 0.05).status == "passed"
    tight = judged(now, against(noise=QUIET), "calibrated")
    assert tight.status == "failed"
    assert (
        "2.8 % is allowed (2.8 sigma of 3 unchanged runs, pytest-ane calibrate)" in tight.reasons[0]
    )
    assert judged(now, against(noise=QUIET), compared=True).status == "failed"
    assert (
        "noise     sigma 1 % of 3 unchanged runs, itself known to 50 %; 2.8 sigma is 2.8 %"
        in tight.details
    )
    loose = judged(now, against(), compared=True)
    assert (loose.status, loose.facts["max_regression"]) == ("passed", DEFAULT)
    unknown = judged(now, against(), "calibrated")
    assert unknown.status == "unproven"
    assert unknown.reasons[0].endswith("measure it with: pytest-ane calibrate")


def test_noise_that_hides_everything_proves_nothing() -> None:
    wild = QUIET.model_copy(update={"medians": (1.0, 4.0, 9.0)})
    verdict = judged(THEN, against(noise=wild), "calibrated")
    assert verdict.status == "unproven"
    assert verdict.reasons[0].startswith("Unchanged runs differ by sigma = 105 % (3 runs)")


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
