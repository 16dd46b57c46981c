"""Thresholds that a manifest may ask for beside the cosine's, and what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.fidelity import Errors
from tests.gates.fidelity.verdicts import BLOCK, GOOD, NAN, of

WORST = (
    "in captured chat T=2, position 2 (largest input 21,953.4, greatest absolute difference 0.125"
)


@pytest.mark.parametrize(
    ("key", "limit", "kept", "says", "would"),
    [
        ("min-contribution", 0.95, 0.9, f"below contribution cosine 0.95; worst 0.900000 {WORST}, "
         "residual 20 times the contribution)", "min-contribution = 0.9"),
        ("max-relative-l2", 0.05, 0.1, f"above relative L2 error 0.05; worst 0.1 {WORST})",
         "max-relative-l2 = 0.1"),
        ("min-snr", 25, 20, f"below an SNR of 25 dB; worst 20.00 dB {WORST})", "min-snr = 20"),
        ("max-error", 0.1, 0.125, f"above an absolute difference of 0.1; worst 0.125 {WORST})",
         "max-error = 0.125"),
        ("max-relative-error", 1, 1.5, f"above a relative difference of 1; worst 1.5 {WORST})",
         "max-relative-error = 1.5"),
        ("min-cosine-flat", 0.995, 0.99, "below flat cosine 0.995; worst 0.990000 "
         f"{WORST.replace('position 2', 'all positions')})", "min-cosine-flat = 0.99"),
        ("min-cosine-group", 0.9, 0.8, "below group cosine 0.9; worst 0.800000 "
         f"{WORST.replace('position 2', '32 channels from 64')})", "min-cosine-group = 0.8"),
    ],
)  # fmt: skip
def test_what_is_asked_decides(key: str, limit: float, kept: float, says: str, would: str) -> None:
    (reason,) = of(BLOCK, **{key: limit}).reasons
    assert reason == f"1 of 1 live probes are {says}; {would} would have passed."
    assert of(BLOCK, **{key: kept}).status == "passed"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("min-contribution", {"contributions": (0.95, NAN)}),
        ("max-relative-l2", {"relative": (NAN, 0.1)}),
        ("min-snr", {"relative": (NAN, 0.1)}),
        ("max-error", {"error_max": NAN}),
        ("max-relative-error", {"errors": Errors(0.99, 0.8, 64, (2, 7), NAN, (2, 9))}),
        ("min-cosine-flat", {"errors": Errors(NAN, 0.8, 64, (2, 7), 1.5, (2, 9))}),
        ("min-cosine-group", {"errors": Errors(0.99, NAN, 64, (2, 7), 1.5, (2, 9))}),
    ],
)
def test_what_is_undefined_keeps_no_threshold(key: str, values: dict[str, Any]) -> None:
    mildest = -1e9 if key == "min-snr" else -1 if key.startswith("min-") else 1e9
    (reason,) = of(replace(BLOCK, **values), **{key: mildest}).reasons
    assert "worst nan" in reason
    assert f"no {key} would have passed" in reason


@given(st.floats(1e-6, 1e6))
def test_the_bound_that_is_said_to_pass_does(error: float) -> None:
    bad = replace(BLOCK, relative=(0.0, error), error_max=error)
    for key in ("max-relative-l2", "max-error"):
        (reason,) = of(bad, **{key: 0.0}).reasons
        said = float(reason.split(f"{key} = ")[1].split(" would")[0])
        assert of(bad, **{key: said}).status == "passed"
        assert said <= error * 1.0011
    (reason,) = of(bad, **{"min-snr": 1e9}).reasons
    said = float(reason.split("min-snr = ")[1].split(" would")[0])
    assert of(bad, **{"min-snr": said}).status == "passed"


def test_a_contribution_that_is_asked_for_and_cannot_be_had_fails() -> None:
    (reason,) = of(GOOD, **{"min-contribution": 0.5}).reasons
    assert reason == (
        "min-contribution is asked for, but no residual path is known of output y, or the evidence "
        "is older than it; ask it of shards that have one, or record the evidence again."
    )
    (reason,) = of(replace(GOOD, idle=(0, 1)), **{"min-contribution": 0.5}).reasons
    assert "is the residual path alone in every probe" in reason
    (reason,) = of(replace(GOOD, kind="extreme"), **{"min-contribution": 0.5}).reasons
    assert reason == (
        "min-contribution is asked for, but it is not compared beside extreme inputs; add another "
        "kind to probes.kinds."
    )
    asked = ("max-relative-l2", "max-relative-error", "min-cosine-flat", "min-cosine-group")
    for key in (*asked, "min-snr"):
        (reason,) = of(GOOD, **{key: 1}).reasons
        assert reason == (
            f"{key} is asked for, but this evidence is older than it; record it again."
        )


def test_position_0_s_contribution_is_reported_apart() -> None:
    probe = replace(BLOCK, positions=(0, 2), contributions=(0.1, 0.9), relative=(5.0, 0.1))
    verdict = of(probe, **{"min-contribution": 0.9, "max-relative-l2": 0.1, "min-cosine-first": -1})
    assert verdict.status == "passed"
    assert verdict.facts["contribution.first.min"] == 0.1
    assert verdict.facts["contribution.min"] == 0.9


def test_outputs_have_thresholds_of_their_own() -> None:
    two = (replace(GOOD, output="y"), replace(GOOD, output="z", cosines=(0.9, 0.8)))
    (reason,) = of(*two).reasons
    assert "worst 0.800000 in gaussian T=2 #0, output z, position 1" in reason
    assert of(*two, outputs={"z": {"min-cosine": 0.8}}).status == "passed"
    (reason,) = of(*two, outputs={"z": {"min-cosine": 0.8}, "y": {"max-error": 0.1}}).reasons
    assert "above an absolute difference of 0.1; worst 0.125 in gaussian T=2 #0, output y" in reason


def test_a_threshold_of_an_output_that_is_not_there_fails() -> None:
    (reason,) = of(GOOD, outputs={"Y": {"min-cosine": 0.5}}).reasons
    assert reason == ("policy.fidelity.outputs names 'Y', and the outputs are y; correct the name.")


def test_values_that_may_be_infinite() -> None:
    masked = replace(GOOD, cosines=(0.99, NAN), spoilt=(1,), finite=0.9)
    assert of(masked).status == "failed"
    assert of(masked, **{"max-non-finite": 0.05}).status == "failed"
    assert of(masked, **{"max-non-finite": 0.2}).status == "passed"
    nothing = replace(masked, cosines=(NAN, NAN), spoilt=(0, 1))
    (reason,) = of(nothing, **{"max-non-finite": 0.2}).reasons
    assert reason.startswith("0 of 1 probes were live")
    elsewhere = replace(masked, cosines=(NAN, NAN))
    (reason,) = of(elsewhere, **{"max-non-finite": 0.2}).reasons
    assert "worst nan" in reason
