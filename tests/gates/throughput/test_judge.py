"""The throughput gate's opinion, by hand."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.throughput.baseline import Baseline, Missing
from pytest_ane.gates.throughput.judge import judge
from pytest_ane.gates.throughput.noise import Noise
from pytest_ane.gates.throughput.speed import Speed
from pytest_ane.gates.throughput.threshold import DEFAULT
from pytest_ane.manifest import ThroughputPolicy
from tests.gates.throughput.runs import HERE, THERE, slower, speed

THEN = speed(4.0, 4.1, 3.9)  # 10 tok/s
QUIET = Noise(
    what="decode", subject="smollm2", tokens=40, medians=(4.0, 4 / 0.99, 4 / 1.01)
)  # sigma 1 %
MISSING = Missing("The stored run 0001 is no baseline: it is of another machine.")


def judged(
    now: Speed = THEN,
    baseline: Baseline | Missing | None = None,
    regression: float | Literal["calibrated"] | None = None,
    floor: float | None = None,
    *,
    recording: bool = False,
    compared: bool = False,
) -> Verdict:
    policy = ThroughputPolicy(max_regression=regression, min_tok_s=floor)
    return judge(now, baseline, policy, recording=recording, compared=compared)


def against(then: Speed = THEN, noise: Noise | None = None) -> Baseline:
    return Baseline(then, "0003", "2026-11-20", noise)


def test_not_asked_it_says_its_figure() -> None:
    verdict = judged()
    assert (verdict.status, verdict.summary) == ("passed", "decoding 10.00 tok/s")
    assert verdict.subject == "smollm2"
    assert verdict.facts == {
        "what": "decode", "seconds": 4.0, "rounds": 3, "tokens": 40, "tok_s": 10.0,
        "ms_token": 100.0,
    }  # fmt: skip
    assert verdict.provenance == HERE


def test_a_regression_names_everything() -> None:
    verdict = judged(slower(THEN, 0.124), against(), 0.05)
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "Decoding: 8.76 tok/s is -12.4 % on the baseline's 10.00 tok/s (run 0003 of 2026-11-20), "
        "and 5 % is allowed (policy.throughput.max-regression), on Apple M4 Max, macOS 26.1, "
        "coreml, CPU_AND_NE.",
    )
    assert verdict.summary == "decoding 8.76 tok/s · -12.4 % on run 0003"
    assert verdict.facts["change"] == pytest.approx(-0.124)
    assert verdict.facts["baseline"] == "0003"
    assert verdict.facts["baseline_tok_s"] == 10.0
    assert verdict.facts["max_regression"] == 0.05


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


def beside(now: Speed, yardstick: float | None) -> Speed:
    return now.model_copy(update={"yardstick": yardstick})


def test_a_machine_that_is_slower_itself_is_warned_of() -> None:
    """A third less, and its yardstick takes 1.4 times as long: 14.29 s would be 10.2 s."""
    now = beside(slower(THEN, 0.3), 2.8e-3)
    verdict = judged(now, against(beside(THEN, 2.0e-3)), 0.05)
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert verdict.facts["warnings"] == 1
    assert verdict.facts["machine_slowdown"] == pytest.approx(1.4)
    assert verdict.summary == ("the machine is slower · decoding 7.00 tok/s · -30 % on run 0003")
    assert verdict.details[0] == (
        "warning: Decoding: 7.00 tok/s is -30 % on the baseline's 10.00 tok/s (run 0003 of "
        "2026-11-20), and 5 % is allowed (policy.throughput.max-regression), on Apple M4 Max, "
        "macOS 26.1, coreml, CPU_AND_NE. But the machine itself is slower: its yardstick takes "
        "1.40 times as long; were it as fast as it was, this would be -2 %."
    )
    assert "machine   its yardstick took 2 ms, takes 2.8 ms" in verdict.details


def test_what_the_machine_does_not_explain_is_a_regression() -> None:
    now = beside(slower(THEN, 0.5), 2.8e-3)
    assert judged(now, against(beside(THEN, 2.0e-3)), 0.05).status == "failed"


@pytest.mark.parametrize(("now", "then"), [(None, 2e-3), (9e-3, None), (1e-3, 2e-3), (2e-3, 2e-3)])
def test_nothing_is_excused(now: float | None, then: float | None) -> None:
    """Where a yardstick is not known, or the machine is no slower than it was."""
    verdict = judged(beside(slower(THEN, 0.3), now), against(beside(THEN, then)), 0.05)
    assert verdict.status == "failed"
    assert verdict.facts["machine_slowdown"] == 1


def test_a_machine_of_half_its_speed_proves_nothing() -> None:
    verdict = judged(beside(slower(THEN, 0.5), 4e-3), against(beside(THEN, 2e-3)), 0.05)
    assert verdict.status == "unproven"
    (reason,) = verdict.reasons
    assert reason.endswith(
        "But the machine itself is slower: its yardstick takes 2.00 times as long, and half the "
        "speed could pass for that; quieten it, and repeat."
    )


@given(
    now=st.floats(1e-6, 1e6),
    then=st.floats(1e-6, 1e6),
    machine=st.floats(1e-3, 1e3),
    tokens=st.integers(0, 64),
)
def test_a_slower_machine_never_turns_what_passed_red(
    now: float, then: float, machine: float, tokens: int
) -> None:
    before = speed(then, tokens=tokens, yardstick=1.0)
    plain = judged(speed(now, tokens=tokens), against(before), 0.1)
    beside_it = judged(speed(now, tokens=tokens, yardstick=machine), against(before), 0.1)
    if plain.status == "passed":
        assert beside_it.status == "passed"
        assert "warnings" not in beside_it.facts
    elif machine <= 1:
        assert beside_it.status == "failed"


def test_without_a_baseline_it_is_unproven() -> None:
    verdict = judged(baseline=MISSING, compared=True)
    assert verdict.status == "unproven"
    assert verdict.reasons == (
        "The stored run 0001 is no baseline: it is of another machine. Record a baseline of this "
        "machine with: pytest -m bench --ane-shards=all --benchmark-autosave",
    )
    assert verdict.summary == "decoding 10.00 tok/s · no baseline"
    assert len(verdict.details) == 1
    assert judged(baseline=None, regression=0.05).status == "unproven"


def test_a_run_that_records_is_its_own_baseline() -> None:
    verdict = judged(baseline=MISSING, regression=0.05, recording=True)
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
    verdict = judged(baseline=against(then), regression=0.05)
    assert verdict.status == "unproven"
    assert "change" not in verdict.facts


def test_other_packages_are_compared_and_named() -> None:
    then = speed(4.0, artifacts={"L00": "a", "L01": "b"}, state={"power": "AC", "load": "0.1"})
    now = speed(4.0, artifacts={"L00": "a", "L01": "c"}, state={"power": "battery", "load": "0.1"})
    verdict = judged(now, against(then), 0.05)
    assert verdict.status == "passed"
    assert "packages changed since: L01" in verdict.details
    assert "power was 'AC', is 'battery'" in verdict.details
    assert not any("load" in line for line in verdict.details)


def test_the_part_that_lost_most_comes_first() -> None:
    then = speed(4.0, profile={"block": 0.08, "head": 0.005, "host": 0.001})
    now = speed(5.0, profile={"block": 0.08, "head": 0.03, "mixture": 0.1})
    details = judged(now, against(then), 0.05).details
    assert [line for line in details if "->" in line] == [
        "head      5 ms -> 30 ms",
        "block     80 ms -> 80 ms",
    ]


def test_the_floor_holds_always() -> None:
    verdict = judged(floor=12.0)
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "Decoding reaches 10.00 tok/s, below policy.throughput.min-tok-s = 12, on Apple M4 Max, "
        "macOS 26.1, coreml, CPU_AND_NE.",
    )
    assert judged(floor=10.0).status == "passed"
    both = judged(slower(THEN, 0.5), against(), 0.05, floor=12.0)
    assert len(both.reasons) == 2
    missing = judged(baseline=MISSING, compared=True, floor=12.0)
    assert (missing.status, len(missing.reasons)) == ("failed", 2)


def test_a_floor_for_no_tokens_is_not_passed() -> None:
    assert judged(speed(4.0, tokens=0), floor=1.0).status == "failed"


def test_thresholds_and_where_they_come_from() -> None:
    now = slower(THEN, 0.04)
    assert judged(now, against(noise=QUIET), 0.05).status == "passed"
    tight = judged(now, against(noise=QUIET), "calibrated")
    assert tight.status == "failed"
    assert (
        "2.8 % is allowed (2.8 sigma of 3 unchanged runs, pytest-ane calibrate)" in tight.reasons[0]
    )
    assert judged(now, against(noise=QUIET), compared=True).status == "failed"
    assert any("itself known to 50 %" in line for line in tight.details)
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
def test_nan_fails(bad: float) -> None:
    update: dict[str, Any] = {"seconds": (bad,)}
    now = THEN.model_copy(update=update)
    assert judged(now, against(), 0.05, floor=1.0).status == "failed"
    assert len(judged(now, against(), 0.05).reasons) == 2
    assert judged(now).status == "failed"
    load = speed(1.0, what="load", tokens=0)
    assert judged(load.model_copy(update=update), against(load), 0.05).status == "failed"


@given(share=st.floats(0, 0.9), allowed=st.floats(0, 0.9))
def test_red_exactly_beyond_the_threshold(share: float, allowed: float) -> None:
    verdict = judged(slower(THEN, share), against(), allowed)
    if abs(share - allowed) > 1e-9:
        assert (verdict.status == "failed") is (share > allowed)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_faster_is_never_red(then: float, now: float) -> None:
    first, second = speed(max(then, now)), speed(min(then, now))
    assert judged(second, against(first), 0.0).status == "passed"
