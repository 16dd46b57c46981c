"""The fidelity gate's verdicts, sentence by sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gates.fidelity.verdicts import BLOCK, CAPTURED, GOOD, NAN, comparison, of


def test_all_close() -> None:
    verdict = of(GOOD, CAPTURED)
    assert (verdict.gate, verdict.subject) == ("fidelity", "smollm2:L01")
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert verdict.summary == (
        "cosine min 0.998000 mean 0.998500 · 2 probes · max |x| 21,953 "
        "(fp16 squares overflow above 255.9)"
    )
    assert verdict.facts == {
        "probes": 2,
        "probes.live": 2,
        "input.max": 21953.4,
        "finite": 1.0,
        "cosine.min": 0.998,
        "cosine.mean": pytest.approx(0.9985),
        "cosine.gaussian.min": 0.998,
        "cosine.captured.min": 0.998,
    }
    assert verdict.details == (
        "gaussian T=2 #0 -> y: cosine 0.998000 at position 1, max |x| 4.2",
        "captured chat T=2 -> y: cosine 0.998000 at position 2, max |x| 21,953.4",
    )


def test_no_probe_proves_nothing() -> None:
    verdict = of()
    assert (verdict.status, verdict.summary) == ("unproven", "nothing was compared")
    assert verdict.reasons == (
        "No probe was run, so nothing was compared; name probe kinds in shards.toml.",
    )


def test_a_low_cosine_names_probe_position_and_the_threshold_that_would_pass() -> None:
    verdict = of(GOOD, comparison(0.99, 0.91238, 0.95))
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "1 of 2 live probes are below cosine 0.97; worst 0.912380 in captured chat T=2, position 2 "
        "(largest input 21,953.4, greatest absolute difference 0.125); min-cosine = 0.9123 would "
        "have passed.",
    )
    assert verdict.details[0].startswith("captured chat T=2 -> y: cosine 0.912380 at position 2")
    assert verdict.facts["cosine.captured.min"] == 0.91238


@pytest.mark.parametrize(("cosine", "passes"), [(0.97, True), (0.9699999, False), (-0.5, False)])
def test_the_threshold_itself_passes(cosine: float, passes: bool) -> None:
    assert (of(comparison(cosine)).status == "passed") is passes


def test_the_threshold_is_the_policy_s() -> None:
    assert of(comparison(0.9), **{"min-cosine": 0.9}).status == "passed"
    assert of(comparison(0.98), **{"min-cosine": 0.99}).status == "failed"


@given(st.floats(-1, 0.9699))
def test_the_threshold_that_is_said_to_pass_does(cosine: float) -> None:
    (reason,) = of(comparison(cosine)).reasons
    said = float(reason.split("min-cosine = ")[1].split(" would")[0])
    assert of(comparison(cosine), **{"min-cosine": said}).status == "passed"
    assert said > cosine - 1.001e-4


@pytest.mark.parametrize(
    ("share", "text"), [(0.75, "25.00%"), (0.0, "100.00%"), (1 - 1e-6, "less than 0.01%")]
)
def test_nan_and_infinity_fail_whatever_the_cosines_are(share: float, text: str) -> None:
    verdict = of(GOOD, replace(CAPTURED, finite=share))
    assert verdict.status == "failed"
    assert verdict.reasons == (
        f"captured chat T=2: {text} of output y is NaN or infinite (largest input 21,953.4; fp16 "
        "squares overflow above 255.9).",
    )


@pytest.mark.parametrize("lowest", [-1.0, 0.97])
def test_an_undefined_cosine_fails_every_threshold(lowest: float) -> None:
    """As where the reference is NaN and the artifact is not."""
    verdict = of(comparison(1.0, NAN), **{"min-cosine": lowest})
    assert verdict.reasons == (
        f"1 of 1 live probes are below cosine {lowest:g}; worst nan in captured chat T=2, position "
        "2 (largest input 21,953.4, greatest absolute difference 0.125); no min-cosine would have "
        "passed.",
    )


def test_an_undefined_cosine_is_worse_than_any_number() -> None:
    verdict = of(comparison(-1.0, probe="opposite"), comparison(NAN, probe="undefined"))
    assert "worst nan in undefined" in verdict.reasons[0]
    assert [line.split(" ->")[0] for line in verdict.details] == ["undefined", "opposite"]


def test_the_summary_does_not_hide_nan() -> None:
    assert of(comparison(1.0, NAN)).summary.startswith("cosine min nan mean nan · 1 probes")


def test_zero_on_one_side_fails() -> None:
    verdict = of(replace(GOOD, one_zero=(3,)), replace(CAPTURED, one_zero=tuple(range(8))))
    assert verdict.reasons == (
        "gaussian T=2 #0: output y is zero on one side only at position 3.",
        "captured chat T=2: output y is zero on one side only at position 0, 1, 2, 3, 4 and 3 "
        "more.",
    )


def test_zero_on_both_sides_is_agreement_and_reported() -> None:
    verdict = of(GOOD, comparison(1.0, both_zero=(1, 2)))
    assert verdict.status == "passed"
    assert verdict.details[1] == (
        "captured chat T=2 -> y: cosine 1.000000 at position 1, 2 positions zero on both sides, "
        "max |x| 21,953.4"
    )


def test_probes_that_are_all_zero_compare_nothing() -> None:
    zero = comparison(both_zero=(0, 1))
    verdict = of(zero, replace(zero, probe="another"))
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "0 of 2 probes were live (the rest gave zeros, or are position 0 alone), policy asks "
        "for 1: too little was compared.",
    )
    assert verdict.summary == (
        "cosine min nan mean nan · 2 probes · 2 all zero · max |x| 21,953 "
        "(fp16 squares overflow above 255.9)"
    )
    assert verdict.details[0] == (
        "captured chat T=2 -> y: nothing live, 2 positions zero on both sides, max |x| 21,953.4"
    )


def test_too_few_live_probes() -> None:
    dead = comparison(both_zero=(0, 1), probe="dead")
    verdict = of(GOOD, dead, **{"min-live-probes": 2})
    assert verdict.reasons == (
        "1 of 2 probes were live (the rest gave zeros, or are position 0 alone), policy asks "
        "for 2: too little was compared.",
    )
    assert verdict.details[-1].startswith("dead -> y: nothing live")
    assert of(GOOD, CAPTURED, dead, **{"min-live-probes": 2}).status == "passed"


def test_two_outputs_of_one_probe_are_one_probe() -> None:
    two = (GOOD, replace(GOOD, output="z"))
    assert of(*two, **{"min-live-probes": 2}).status == "failed"
    assert of(*two).facts["probes.live"] == 1


def test_without_a_reference_only_finite_outputs_are_asked_for() -> None:
    verdict = of(comparison(0.1), compared=False)
    assert verdict.status == "passed"
    assert verdict.summary == "runs, all finite (no reference: cosine not asked)"
    assert "cosine.min" not in verdict.facts


def test_without_a_reference_nan_fails() -> None:
    verdict = of(GOOD, replace(CAPTURED, finite=0.5), compared=False)
    assert verdict.status == "failed"
    assert verdict.summary == "runs, 50.00% NaN or infinite (no reference: cosine not asked)"
    assert len(verdict.reasons) == 1


def test_a_nan_among_the_largest_inputs_is_shown() -> None:
    verdict = of(GOOD, replace(CAPTURED, input_max=NAN))
    assert math.isnan(float(verdict.facts["input.max"]))
    assert verdict.summary.endswith("max |x| nan")


def test_position_0_of_a_captured_probe_is_judged_apart() -> None:
    probe = replace(CAPTURED, cosines=(0.93, 0.98), positions=(0, 1))
    verdict = of(GOOD, probe)
    assert verdict.status == "passed"
    assert verdict.summary.startswith("cosine min 0.980000 mean 0.992333 (position 0: 0.9300) · 2")
    assert verdict.facts["cosine.first.min"] == 0.93
    assert verdict.facts["cosine.captured.min"] == 0.98
    assert of(GOOD, replace(probe, kind="gaussian")).status == "failed"


@pytest.mark.parametrize(("cosine", "would"), [(0.85, "min-cosine-first = 0.85"), (NAN, "no min")])
def test_position_0_has_a_bound_of_its_own(cosine: float, would: str) -> None:
    verdict = of(GOOD, replace(CAPTURED, cosines=(cosine, 0.98), positions=(0, 1)))
    (reason,) = verdict.reasons
    assert reason.startswith("1 of 1 live probes are below cosine 0.9; worst ")
    assert "in captured chat T=2, position 0 (" in reason
    assert would in reason
    assert of(GOOD, CAPTURED, **{"min-cosine-first": 1.0}).status == "passed"


def test_position_0_alone_is_too_little() -> None:
    alone = replace(CAPTURED, cosines=(0.99,), positions=(0,))
    (reason,) = of(alone).reasons
    assert reason.startswith("0 of 1 probes were live (the rest gave zeros, or are position 0 al")


@given(st.lists(st.floats(-1, 1) | st.just(NAN), min_size=1, max_size=6), st.floats(-1, 1))
def test_passed_exactly_if_every_cosine_reaches_the_threshold(
    cosines: list[float], threshold: float
) -> None:
    verdict = of(comparison(*cosines), **{"min-cosine": threshold})
    assert (verdict.status == "passed") is all(c >= threshold for c in cosines)


def test_the_contribution_is_shown_and_does_not_decide() -> None:
    verdict = of(GOOD, BLOCK)
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert " mean 0.998500 · contribution min 0.9000 · 2 probes" in verdict.summary
    assert verdict.facts["contribution.min"] == 0.9
    assert verdict.facts["contribution.mean"] == pytest.approx(0.925)
    assert verdict.facts["contribution.captured.min"] == 0.9
    assert verdict.facts["contribution.residual"] == 20
    assert verdict.facts["relative_l2.max"] == 0.1
    assert verdict.facts["snr.min"] == pytest.approx(20)
    assert verdict.facts["cosine.group.min"] == 0.8
    assert verdict.facts["error.max"] == 0.125
    assert verdict.details[1] == (
        "captured chat T=2 -> y: cosine 0.998000 at position 2, contribution 0.900000 at position "
        "2, residual 20 times it, relative L2 0.1 (SNR 20.00 dB), flat cosine 0.990000, channels "
        "64 to 95 0.800000, greatest difference 0.125 at position 2, channel 7, greatest relative "
        "one 1.5 at position 2, channel 9, max |x| 21,953.4"
    )


def test_only_the_worst_five_show_every_metric() -> None:
    several = [
        replace(BLOCK, probe=f"p{i}", cosines=(1 - i / 100, 0.998), positions=(1, 2))
        for i in range(6)
    ]
    lines = of(*several).details
    assert [line.split(" ")[0] for line in lines] == ["p5", "p4", "p3", "p2", "p1", "p0"]
    assert ["SNR" in line for line in lines] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("experts", "says"),
    [
        (((4, 9), (9,)), "1, 2, where experts 4, 9 are active in the reference."),
        (((7,), ()), "1, 2, where expert 7 is active in the reference."),
        (((), ()), "1, 2, where no expert of this shard is active in the reference."),
        ((), "1, 2."),
    ],
)
def test_zero_on_one_side_names_the_experts(experts: tuple[Any, ...], says: str) -> None:
    (reason,) = of(comparison(0.99, one_zero=(1, 2), experts=experts)).reasons
    assert reason == f"captured chat T=2: output y is zero on one side only at position {says}"


@pytest.mark.parametrize(
    ("largest", "text"),
    [
        (39.4, "max |x| 39"),
        (255.9, "max |x| 256"),
        (256.0, "max |x| 256 (fp16 squares overflow above 255.9)"),
        (70_000.0, "max |x| 70,000 (fp16 overflows above 65,504)"),
    ],
)
def test_the_largest_input_is_explained_where_it_matters(largest: float, text: str) -> None:
    assert of(replace(GOOD, input_max=largest)).summary.endswith(f" · {text}")
