"""The verdict of a forecast."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.core.errors import ManifestError
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.placement import Finding, Forecast, judge

LEFT_OUT = {"const": 44, "constexpr_lut_to_dense": 4, "boundary cast": 2}
WHY = "Its weight `w` has 18 scales along axis 1."


def of(found: Forecast, os: str = "macOS 26") -> Verdict:
    return judge(found, subject="smollm2:L01", os=os)


def blocked(count: int, rule: str = "R064") -> tuple[Finding, ...]:
    return tuple(Finding(rule, "ineligible", f"c{i}", "conv", WHY, "main", i) for i in range(count))


def test_an_eligible_shard_passes_and_says_that_it_is_a_forecast() -> None:
    verdict = of(Forecast(1000, {"mul": 51, "conv": 7}, LEFT_OUT))
    assert (verdict.gate, verdict.subject) == ("placement", "smollm2:L01")
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert verdict.summary == (
        "eligible, needs device evidence · conv 7/7 · compute 58 ops · left out: 44 const, "
        "4 constexpr_lut_to_dense, 2 boundary casts"
    )
    assert verdict.details == (
        "This is a forecast from documented rules: which device runs an op, only a plan recorded "
        "on a Mac can say.",
    )
    assert verdict.facts == {
        "instrument": "forecast",
        "outcome": "eligible",
        "os": "macOS 26",
        "compute_ops": 58,
        "ineligible_ops": 0,
        "warned_ops": 0,
        "conv_eligible": 7,
        "conv_total": 7,
        "left_out_ops": 50,
        "size_bytes": 1000,
        "rules": "",
    }


def test_an_ineligible_op_fails_and_is_named_with_rule_source_and_fix() -> None:
    verdict = of(Forecast(1000, {"conv": 7, "mul": 3}, {}, blocked(2)))
    assert verdict.status == "failed"
    assert verdict.summary == "ineligible (forecast) · conv 5/7 · compute 10 ops, 2 ineligible"
    assert verdict.reasons == (
        "R064: conv `c0` (and 1 more) is ineligible: its weight `w` has 18 scales along axis 1.",
    )
    assert verdict.details[:3] == (
        "R064 · ineligible · The ANE accepts scales per output channel or per tensor, not per "
        "block.",
        f"  conv `c0`: {WHY}",
        f"  conv `c1`: {WHY}",
    )
    assert verdict.details[4].startswith("  source: coremltools #2510;")
    assert verdict.details[5] == (
        "  fix: use per-channel scales, or a palette with granularity per_grouped_channel"
    )
    assert verdict.facts["rules"] == "R064"


def test_ten_ops_are_listed_and_the_rest_counted() -> None:
    verdict = of(Forecast(1, {"conv": 45}, {}, (*blocked(8, "R021"), *blocked(45))))
    listed = [line for line in verdict.details if line.startswith("  conv")]
    assert len(listed) == 10
    assert "... and 43 more findings." in verdict.details
    assert len(verdict.reasons) == 2
    assert verdict.facts["ineligible_ops"] == 45


def test_a_package_that_is_too_large_for_the_system_fails_as_a_whole() -> None:
    large = Forecast(3 * 2**29, {"conv": 7}, {})
    assert of(large, "macOS 26").status == "passed"
    verdict = of(large, "macOS 27")
    assert verdict.status == "failed"
    assert verdict.summary == "ineligible (forecast) · conv 0/7 · compute 7 ops, 7 ineligible"
    assert verdict.reasons == (
        "R076: package `the artifact` is ineligible: the artifact has 1.50 GiB; macOS 27 takes "
        "1 GiB at most.",
    )


def test_a_warning_passes_and_is_told() -> None:
    warning = Finding("R011", "warned", "s", "cumsum", "`cumsum` is placed on the CPU.", "main", 0)
    verdict = of(Forecast(1, {"cumsum": 1}, {}, (warning,)))
    assert verdict.status == "passed"
    assert verdict.summary == "eligible, needs device evidence · compute 1 op, 1 warned"
    assert verdict.details[:2] == ("R011 · warned · `cumsum` is placed on the CPU.", "  cumsum `s`")


def test_a_program_without_compute_ops_is_unproven() -> None:
    verdict = of(Forecast(1, {}, {"const": 3}))
    assert verdict.status == "unproven"
    assert verdict.summary == "unproven (forecast) · compute 0 ops · left out: 3 const"
    assert verdict.reasons == (
        "The program has no compute op, so there is nothing to place; check that the artifact is "
        "the one that was built.",
    )


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(ManifestError, match="is not a system"):
        of(Forecast(1, {"conv": 1}, {}), "Plan 9")


FINDINGS = st.builds(
    Finding,
    rule=st.sampled_from(["R001", "R011", "R030", "R049", "R064", "R076", "R999"]),
    outcome=st.sampled_from(["ineligible", "warned"]),
    op=st.text("abc", min_size=1),
    type=st.just("conv"),
    why=st.sampled_from(["", "It is.", "The ANE cannot."]),
    index=st.none() | st.integers(0, 4),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(FINDINGS, max_size=30).map(tuple), st.sampled_from([1, 2**31, 2**33]))
def test_it_never_claims_more_than_a_forecast_can(found: tuple[Finding, ...], size: int) -> None:
    verdict = of(Forecast(size, {"conv": 5}, {}, found), "macOS 27")
    blocked = size > 2**30 or any(finding.outcome == "ineligible" for finding in found)
    assert verdict.status == ("failed" if blocked else "passed")
    words = "\n".join((verdict.summary, *verdict.reasons, *verdict.details)).lower()
    assert "resident" not in words
    assert "%" not in words
    claim = "ineligible (forecast)" if blocked else "eligible, needs device evidence"
    assert verdict.summary.startswith(claim)
    assert "forecast" in verdict.details[-1]
