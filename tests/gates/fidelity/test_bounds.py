"""Thresholds that a manifest may set besides the cosine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.fidelity import Comparison
from pytest_ane.gates.fidelity._judge import _no_values
from pytest_ane.gates.fidelity._records import MAX_RELATIVE_L2
from tests.gates.fidelity.verdicts import BLOCK, GOOD, NAN, of, passing


@pytest.mark.parametrize(
    ("key", "limit", "kept", "figure"),
    [
        ("min-contribution", 0.95, 0.9, "contribution.min"),
        ("max-relative-l2", 0.05, 0.1, "relative_l2.max"),
    ],
)
def test_what_is_asked_decides(key: str, limit: float, kept: float, figure: str) -> None:
    verdict = of(BLOCK, **{key: limit})
    (finding,) = verdict.reasons
    assert (finding.severity, finding.figure, finding.where.probe) == (
        "failed", figure, "captured chat T=2"
    )  # fmt: skip
    assert passing(finding) == pytest.approx(kept)
    broken = verdict.figure(figure)
    assert (broken.value, broken.limit) == (pytest.approx(kept), limit)
    assert not broken.passes
    assert of(BLOCK, **{key: kept}).status == "passed"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("min-contribution", {"contributions": (0.95, NAN)}),
        ("max-relative-l2", {"relative": (NAN, 0.1)}),
    ],
)
def test_what_is_undefined_keeps_no_threshold(key: str, values: dict[str, Any]) -> None:
    mildest = -1 if key.startswith("min-") else 1e9
    verdict = of(replace(BLOCK, **values), **{key: mildest})
    assert any(f.reason.endswith(f"; no {key} would have passed") for f in verdict.reasons)


def test_no_limit_is_offered_beyond_half_of_the_signal() -> None:
    lost = replace(BLOCK, relative=(0.0, 0.51))
    assert "would have passed" not in of(lost, **{"max-relative-l2": 0.1}).reasons[0].reason


@given(st.floats(1e-6, 0.2))
def test_the_limit_that_would_have_passed_passes(error: float) -> None:
    bad = replace(BLOCK, relative=(0.0, error))
    limit = passing(of(bad, **{"max-relative-l2": 0.0}).reasons[0])
    assert of(bad, **{"max-relative-l2": limit}).status == "passed"
    assert limit <= error * 1.0011


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (GOOD, "no residual path of output y is known"),
        (replace(GOOD, idle=(0, 1)), "output y is the residual path alone in every probe, so no"),
        (replace(GOOD, kind="extreme"), "contributions are not compared on extreme inputs"),
    ],
)
def test_a_contribution_that_is_asked_for_and_cannot_be_had_fails(
    probe: Comparison, why: str
) -> None:
    (finding,) = of(probe, **{"min-contribution": 0.5}).reasons
    assert finding.severity == "failed"
    assert finding.reason.startswith(f"min-contribution is set, but {why}")


def test_another_metric_without_values_is_called_by_its_own_name() -> None:
    finding = _no_values(MAX_RELATIVE_L2, [GOOD])
    assert finding.severity == "failed"
    assert finding.reason == (
        "max-relative-l2 is set, but no relative L2 of output y could be computed"
    )


def test_position_0_s_contribution_is_reported_apart() -> None:
    probe = replace(BLOCK, positions=(0, 2), contributions=(0.1, 0.9), relative=(5.0, 0.1))
    verdict = of(probe, **{"min-contribution": 0.9, "max-relative-l2": 0.1})
    assert verdict.status == "passed"
    assert verdict.values["contribution.first.min"] == 0.1
    assert verdict.values["contribution.min"] == 0.9


def test_outputs_have_thresholds_of_their_own() -> None:
    two = (replace(GOOD, output="y"), replace(GOOD, output="z", cosines=(0.9, 0.8)))
    (finding,) = of(*two).reasons
    assert (finding.where.output, finding.where.position) == ("z", 1)
    assert of(*two, outputs={"z": {"min-cosine": 0.8}}).status == "passed"
    verdict = of(*two, outputs={"z": {"min-cosine": 0.8}, "y": {"max-relative-l2": 0.05}})
    (finding,) = verdict.reasons
    assert (finding.figure, finding.where.output) == ("relative_l2.max[y]", "y")
    own = verdict.figure("cosine.min[z]")
    assert (own.value, own.limit) == (0.8, 0.8)
    assert verdict.values["cosine.min"] == 0.8


def test_a_threshold_of_an_output_that_is_not_there_fails() -> None:
    (finding,) = of(GOOD, outputs={"Y": {"min-cosine": 0.5}}).reasons
    assert "'Y'" in finding.reason


def test_values_that_may_be_infinite() -> None:
    masked = replace(GOOD, cosines=(0.99, NAN), spoilt=(1,), finite=0.9)
    assert of(masked).status == "failed"
    assert of(masked, **{"max-non-finite": 0.05}).status == "failed"
    allowed = of(masked, **{"max-non-finite": 0.2})
    assert allowed.status == "passed"
    cosine = allowed.figure("cosine.min")
    assert cosine.limit is None  # What is left out keeps no limit.
    nothing = replace(masked, cosines=(NAN, NAN), spoilt=(0, 1))
    (finding,) = of(nothing, **{"max-non-finite": 0.2}).reasons
    assert finding.figure == ""
    (finding,) = of(replace(masked, cosines=(NAN, NAN)), **{"max-non-finite": 0.2}).reasons
    assert finding.figure == "cosine.min"
