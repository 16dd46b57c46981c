"""The verdict of a forecast."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.gates.placement import Forecast, Match, judge
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.errors import ManifestError
from pytest_ane.report.verdict import details, reasons, row

LEFT_OUT = {"const": 44, "constexpr_lut_to_dense": 4, "boundary cast": 2}
WHY = "Its weight `w` has 18 scales along axis 1."


def of(found: Forecast, os: str = "macOS 26") -> Verdict:
    return judge(found, PlacementPolicy.model_construct(os=os), "smollm2:L01")


def blocked(count: int, rule: str = "R064") -> tuple[Match, ...]:
    return tuple(Match(rule, "ineligible", f"c{i}", "conv", WHY, "main", i) for i in range(count))


def test_an_eligible_shard_passes_by_a_forecast() -> None:
    verdict = of(Forecast(1000, {"mul": 51, "conv": 7}, LEFT_OUT))
    assert (verdict.gate, verdict.subject, verdict.basis) == (
        "placement", "smollm2:L01", "forecast",
    )  # fmt: skip
    assert (verdict.status, verdict.findings, verdict.tables) == ("passed", (), ())
    assert verdict.values == {
        "instrument": "forecast", "outcome": "eligible", "os": "macOS 26", "likely_ane_ops": 58,
        "compute_ops": 58, "ineligible_ops": 0, "warned_ops": 0, "conv_eligible": 7,
        "conv_total": 7, "left_out_ops": 50, "size_bytes": 1000, "rules": "",
        "answer": "on the ANE",
    }  # fmt: skip


def test_an_ineligible_op_fails_and_is_named_with_rule_source_and_fix() -> None:
    verdict = of(Forecast(1000, {"conv": 7, "mul": 3}, {}, blocked(2)))
    assert [(f.severity, f.where.op) for f in verdict.findings] == [
        ("failed", "c0"), ("failed", "c1")
    ]  # fmt: skip
    assert len({f.kind for f in verdict.findings}) == 1
    assert "R064" in verdict.findings[0].kind
    assert verdict.findings[0].remedy.startswith("use per-channel scales")
    operations, rules = verdict.tables
    assert [row[:4] for row in operations.rows] == [
        ("R064", "ineligible", "conv", "c0"), ("R064", "ineligible", "conv", "c1")
    ]  # fmt: skip
    assert [row[1] for row in rules.rows] == ["rule", "seen", "source", "fix"]
    assert (verdict.values["rules"], verdict.values["conv_eligible"]) == ("R064", 5)


def test_a_package_that_is_too_large_for_the_system_fails_as_a_whole() -> None:
    large = Forecast(3 * 2**29, {"conv": 7}, {})
    assert of(large, "macOS 26").status == "passed"
    verdict = of(large, "macOS 27")
    (finding,) = verdict.reasons
    assert (finding.where.op, finding.kind) == ("", "")
    assert "R076" in finding.reason
    assert verdict.values["ineligible_ops"] == 7
    with pytest.raises(ManifestError, match="is not a system"):
        of(Forecast(1, {"conv": 1}, {}), "Plan 9")


def test_what_is_likely_on_the_cpu_passes_and_is_noted() -> None:
    warning = Match("R009", "warned", "s", "topk", "A `topk` may be placed on the CPU.", "main", 0)
    verdict = of(Forecast(1, {"topk": 1, "mul": 2}, {}, (warning,)))
    assert verdict.status == "passed"
    assert [(f.severity, f.where.op) for f in verdict.findings] == [("note", "s")]
    assert (verdict.values["likely_ane_ops"], verdict.values["warned_ops"]) == (2, 1)
    figure = verdict.figure("warned_ops")
    assert (figure.unit, figure.note) == ("ops likely on the CPU", "topk")


def test_an_op_comes_before_the_casts_that_are_there_for_it() -> None:
    kinds = ("cast", "batch_norm", "cast")
    found = tuple(
        Match("R021", "ineligible", f"o{i}", kind, "It computes fp32.", "main", i)
        for i, kind in enumerate(kinds)
    )
    verdict = of(Forecast(1, {"cast": 2, "batch_norm": 1}, {}, found))
    assert [finding.where.op for finding in verdict.reasons] == ["o1", "o0", "o2"]
    newer = Match("R999", "ineligible", "y", "conv", "It cannot.", "main", 0)
    (finding,) = of(Forecast(1, {"conv": 1}, {}, (newer,))).reasons
    assert "R999" in finding.reason


@pytest.mark.parametrize("forecast", [Forecast(1, {}, {"const": 3}), Forecast(1, {}, {})])
def test_a_program_without_compute_ops_is_unproven(forecast: Forecast) -> None:
    assert (forecast.outcome, of(forecast).status) == ("unproven", "unproven")


MATCHES = st.builds(
    Match, rule=st.sampled_from(["R001", "R011", "R030", "R049", "R064", "R076", "R999"]),
    outcome=st.sampled_from(["ineligible", "warned"]), op=st.text("abc", min_size=1),
    type=st.just("conv"), why=st.sampled_from(["", "It is.", "The ANE cannot."]),
    index=st.none() | st.integers(0, 4),
)  # fmt: skip


@settings(deadline=None, derandomize=True)
@given(st.lists(MATCHES, max_size=30).map(tuple), st.sampled_from([1, 2**31, 2**33]))
def test_it_never_claims_more_than_a_forecast_can(found: tuple[Match, ...], size: int) -> None:
    verdict = of(Forecast(size, {"conv": 5}, {}, found), "macOS 27")
    blocked = size > 2**30 or any(match.outcome == "ineligible" for match in found)
    assert verdict.status == ("failed" if blocked else "passed")
    words = "\n".join((row(verdict), *reasons(verdict), *details(verdict))).lower()
    assert "resident" not in words
    assert "the ANE (" in row(verdict)
    assert "by rules alone" in row(verdict)
