"""Thresholds that follow from `min-cosine` where there is no error budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ane.gates.fidelity._records import MAX_RELATIVE_L2, MIN_CONTRIBUTION, Group
from pytest_ane.manifest.policy import FidelityPolicy
from tests.gates.fidelity.verdicts import BLOCK, GOOD, of

POLICY = FidelityPolicy()


def test_another_scale_is_red_though_the_cosine_is_1() -> None:
    verdict = of(replace(GOOD, cosines=(1.0, 1.0), relative=(0.75, 0.75)))
    assert [f.figure for f in verdict.reasons] == ["relative_l2.max"]
    figure = verdict.figure("relative_l2.max")
    assert figure.limit == pytest.approx(2 * 0.03**0.5, abs=1e-4)


@pytest.mark.parametrize("policy", [{"max-relative-l2": 1}, {"min-cosine": 0.5}])
def test_a_policy_that_allows_it_decides(policy: dict[str, float]) -> None:
    assert of(replace(GOOD, relative=(0.75, 0.75)), **policy).status == "passed"


def test_a_contribution_that_the_residual_path_hides_or_doubles_is_red() -> None:
    hidden = replace(BLOCK, contributions=(0.95, 0.47))
    assert [f.figure for f in of(hidden).reasons] == ["contribution.min"]
    assert of(hidden, **{"min-contribution": 0.4}).status == "passed"
    twice = replace(BLOCK, contributions=(1.0, 1.0), relative=(0.2, 0.2))
    (finding,) = of(twice).reasons
    assert "off by 1 of itself, at most 0.69" in finding.reason
    assert of(replace(twice, relative=(0.02, 0.02))).status == "passed"
    assert of(replace(twice, residual=1000.0)).status == "passed"
    assert of(replace(BLOCK, contributions=(0.9, -0.9)), **{"min-cosine": -1}).status == "passed"


def test_an_error_budget_decides_by_itself() -> None:
    pooled = Group((BLOCK,), pool=True, implied=False)
    assert pooled.limit(MAX_RELATIVE_L2, POLICY) is pooled.limit(MIN_CONTRIBUTION, POLICY) is None
    plain = Group((GOOD,), pool=False)
    assert plain.limit(MIN_CONTRIBUTION, POLICY) is None
