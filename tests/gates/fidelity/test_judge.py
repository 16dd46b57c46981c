"""The fidelity gate's verdicts: figures, findings and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.gates.fidelity import Comparison, Fidelity, judge
from pytest_ane.gates.fidelity._records import MAX_RELATIVE_L2, MIN_CONTRIBUTION, Group
from pytest_ane.gates.verdict import Cell, Verdict, Where
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.probes.error_budget import Error, ErrorBudget
from pytest_ane.probes.scales import Edge
from pytest_ane.report.verdict import details, properties, row
from tests.gates.fidelity.verdicts import BLOCK, CAPTURED, GOOD, NAN, comparison, of, passing

NOT_FINITE = "give NaN or infinite values"


def probes(verdict: Verdict) -> list[object]:
    """Probes in the order of the table."""
    return [row[0] for row in verdict.tables[0].rows]


def test_all_close() -> None:
    verdict = of(GOOD, BLOCK)
    assert (verdict.gate, verdict.subject) == ("fidelity", "smollm2:L01")
    assert (verdict.status, verdict.reasons) == ("passed", ())
    expected = {
        "probes": 2, "probes.live": 2, "input.max": 21953.4, "finite": 1.0, "cosine.min": 0.998,
        "cosine.mean": pytest.approx(0.9985), "cosine.gaussian.min": 0.998,
        "cosine.captured.min": 0.998, "contribution.min": 0.9,
        "contribution.mean": pytest.approx(0.925), "contribution.captured.min": 0.9,
        "contribution.residual": 5, "relative_l2.max": 0.1, "error.max": 0.125,
    }  # fmt: skip
    assert verdict.values.items() >= expected.items()
    table = verdict.tables[0]
    assert [(c.title, c.limit) for c in table.columns[:4]] == [
        ("probe", None), ("cosine", 0.97), ("at", None), ("contribution", 0.8818)
    ]  # fmt: skip
    assert [row[:3] for row in table.rows] == [
        ("gaussian T=2 #0", 0.998, 1), ("captured chat T=2", 0.998, 2)
    ]  # fmt: skip


def test_a_low_cosine_names_probe_position_and_the_threshold_that_would_pass() -> None:
    verdict = of(GOOD, comparison(0.99, 0.91238, 0.95))
    (finding,) = verdict.reasons
    assert finding.where == Where(probe="captured chat T=2", position=2, output="y")
    assert (finding.figure, passing(finding)) == ("cosine.min", 0.9123)
    # A looser threshold mends nothing.
    assert finding.remedy == ""
    figure = verdict.figure("cosine.min")
    assert (figure.value, figure.limit, figure.passes) == (0.91238, 0.97, False)
    assert probes(verdict)[0] == "captured chat T=2"
    for cosine in (0.8999, -0.998):
        assert "would have passed" not in of(comparison(cosine)).reasons[0].reason


@given(st.floats(0.9, 0.9699))
def test_the_limit_that_would_have_passed_passes(cosine: float) -> None:
    limit = passing(of(comparison(cosine)).reasons[0])
    assert of(comparison(cosine), **{"min-cosine": limit}).status == "passed"
    assert limit > cosine - 1.001e-4


@pytest.mark.parametrize("share", [0.75, 0.0, 1 - 1e-6])
def test_nan_and_infinity_fail_whatever_the_cosines_are(share: float) -> None:
    (finding,) = of(GOOD, replace(CAPTURED, finite=share)).reasons
    assert (finding.where.probe, finding.kind) == ("captured chat T=2", NOT_FINITE)


def test_an_undefined_cosine_is_worse_than_any_number() -> None:
    verdict = of(comparison(-1.0, probe="opposite"), comparison(NAN, probe="undefined"))
    assert verdict.reasons[0].where.probe == "undefined"
    assert probes(verdict) == ["undefined", "opposite"]
    assert math.isnan(float(verdict.values["cosine.min"]))


def test_zero_on_one_side_fails_and_on_both_is_agreement() -> None:
    verdict = of(replace(GOOD, one_zero=(3,)), replace(CAPTURED, one_zero=tuple(range(8))))
    assert [f.where.probe for f in verdict.reasons] == ["gaussian T=2 #0", "captured chat T=2"]
    assert {f.kind for f in verdict.reasons} == {"are zero on one side only"}
    (finding,) = of(comparison(0.99, one_zero=(1, 2), experts=((4, 9), (9,)))).reasons
    assert "experts active in the reference: 4, 9" in finding.reason
    verdict = of(GOOD, comparison(1.0, both_zero=(1, 2)))
    assert verdict.status == "passed"
    assert verdict.tables[0].rows[1][-2] == 2


def test_too_few_live_probes() -> None:
    zero = comparison(both_zero=(0, 1))
    verdict = of(zero, replace(zero, probe="another"))
    assert verdict.status == "failed"
    assert len(verdict.reasons) == 1
    assert (verdict.values["probes"], verdict.values["probes.live"]) == (2, 0)
    dead = comparison(both_zero=(0, 1), probe="dead")
    verdict = of(GOOD, dead, **{"min-live-probes": 2})
    assert verdict.status == "failed"
    assert probes(verdict)[-1] == "dead"
    assert of(GOOD, CAPTURED, dead, **{"min-live-probes": 2}).status == "passed"
    two = (GOOD, replace(GOOD, output="z"))
    assert of(*two, **{"min-live-probes": 2}).status == "failed"
    assert of(*two).values["probes.live"] == 1
    alone = replace(CAPTURED, cosines=(0.99,), positions=(0,), relative=(0.1,))
    assert of(alone).status == "failed"
    assert of().status == "unproven"


def test_without_a_reference_only_finite_outputs_are_asked_for() -> None:
    verdict = of(comparison(0.1), compared=False)
    assert verdict.status == "passed"
    assert "cosine.min" not in verdict.values
    verdict = of(GOOD, replace(CAPTURED, finite=0.5), compared=False)
    assert [f.kind for f in verdict.reasons] == [NOT_FINITE]
    assert verdict.values["finite"] == 0.5
    verdict = of(GOOD, replace(CAPTURED, input_max=NAN))
    assert math.isnan(float(verdict.values["input.max"]))


ANOTHER = {"require-independent": True}


def test_a_reference_without_a_second_author_is_named_in_the_row() -> None:
    same = of(GOOD, same=True)
    assert same.status == "passed"
    assert row(same).startswith("cosine 0.9980 (needs 0.97), reference: same module")
    assert properties(same)["reference"] == "same module"
    assert "reference" not in row(of(GOOD, same=False))


@pytest.mark.parametrize(
    ("same", "compared", "reason"),
    [
        (False, True, ""),
        (True, True, "The reference is the same module"),
        (None, True, "Who wrote the reference is not recorded"),
        (None, False, "There is no reference"),
    ],
)
def test_another_author_is_required(same: bool | None, compared: bool, reason: str) -> None:
    verdict = of(GOOD, same=same, compared=compared, **ANOTHER)
    assert verdict.status == ("unproven" if reason else "passed")
    whole = f"{reason}, and require-independent asks for one by another author"
    assert [finding.reason for finding in verdict.reasons] == [whole] * bool(reason)
    assert all(finding.remedy for finding in verdict.reasons)
    assert of(GOOD, same=same, compared=compared).status == "passed"


def test_a_red_verdict_stays_red_where_another_author_is_required() -> None:
    verdict = of(comparison(0.5), same=True, **ANOTHER)
    assert verdict.status == "failed"
    assert [finding.severity for finding in verdict.reasons] == ["failed", "unproven"]
    assert row(verdict).startswith("cosine 0.5000 < 0.97")


def test_position_0_of_a_captured_probe_is_judged_apart() -> None:
    probe = replace(CAPTURED, cosines=(0.93, 0.98), positions=(0, 1))
    verdict = of(GOOD, probe)
    assert verdict.status == "passed"
    assert verdict.values["cosine.first.min"] == 0.93
    assert verdict.values["cosine.min"] == verdict.values["cosine.captured.min"] == 0.98
    assert of(GOOD, replace(probe, kind="gaussian")).status == "failed"


@pytest.mark.parametrize("cosine", [0.9, NAN])
def test_position_0_has_a_bound_that_follows(cosine: float) -> None:
    probe = replace(CAPTURED, cosines=(cosine, 0.98), positions=(0, 1))
    (finding,) = of(GOOD, probe).reasons
    assert (finding.figure, finding.where.position) == ("cosine.first.min", 0)
    assert "below 0.91, which min-cosine allows there: " in finding.reason
    low = of(GOOD, replace(probe, cosines=(0.9, 0.98)), **{"min-cosine": 0.96})
    assert low.status == "passed"


@given(st.lists(st.floats(-1, 1) | st.just(NAN), min_size=1, max_size=6), st.floats(1e-9, 1))
def test_passed_exactly_if_every_cosine_reaches_the_threshold(
    cosines: list[float], threshold: float
) -> None:
    verdict = of(comparison(*cosines), **{"min-cosine": threshold})
    assert (verdict.status == "passed") is all(c >= threshold for c in cosines)


NORM = Edge(255.0, "overflows", "mul square: 6.6e+04")


@pytest.mark.parametrize(
    ("edge", "most", "status", "says"),
    [
        (None, None, "passed", ""),
        (NORM, None, "passed", ""),
        (NORM, 200, "passed", ""),
        (NORM, 300, "failed", "reach 300, and from 255 on fp16 overflows (mul square: 6.6e+04)"),
        (Edge(196.0, "departs"), 300, "failed", "from 196 on it departs from its reference"),
        (Edge(0.0, "departs"), None, "passed", ""),  # Nothing is right: other rows say it.
        (Edge(65504.0), 65504, "passed", ""),
        (None, 300, "unproven", "Inputs reach 300, and no probe is larger than 4.25"),
        (None, 4, "passed", ""),
    ],
)
def test_inputs_up_to_what_the_policy_says(
    edge: Edge | None, most: float | None, status: str, says: str
) -> None:
    fidelity = Fidelity((GOOD,), True, {}, edge=edge)
    verdict = judge(fidelity, FidelityPolicy(input_range=most), "m:s", own=True)
    assert verdict.status == status
    assert says in "".join(f.reason for f in verdict.findings)
    shown = {f.label: f.value for f in verdict.figures if f.shown and f.name == "edge"}
    found = {f"{edge.how} from": f"{edge.holds:g} x"} if edge and edge.how else {}
    assert shown == (found if edge and edge.holds else {})


@pytest.mark.parametrize(
    ("key", "limit", "kept", "figure", "undefined", "lost"),
    [
        ("min-contribution", 0.95, 0.9, "contribution.min", {"contributions": (0.95, NAN)},
         {"contributions": (0.95, 0.8)}),
        ("max-relative-l2", 0.05, 0.1, "relative_l2.max", {"relative": (NAN, 0.1)},
         {"relative": (0.0, 0.51)}),
    ],
)  # fmt: skip
def test_what_is_asked_decides(
    key: str, limit: float, kept: float, figure: str, undefined: Any, lost: Any
) -> None:
    verdict = of(BLOCK, **{key: limit})
    (finding,) = verdict.reasons
    assert (finding.severity, finding.figure) == ("failed", figure)
    assert finding.where.probe == "captured chat T=2"
    assert passing(finding) == pytest.approx(kept)
    broken = verdict.figure(figure)
    assert (broken.value, broken.limit) == (pytest.approx(kept), limit)
    assert not broken.passes
    assert of(BLOCK, **{key: kept}).status == "passed"
    # NaN keeps no threshold, and beyond half of the signal none is offered.
    mildest = 0.01 if key.startswith("min-") else 1
    verdict = of(replace(BLOCK, **undefined), **{key: mildest})
    assert any(f.reason.endswith(f"; no {key} would have passed") for f in verdict.reasons)
    assert "would have passed" not in of(replace(BLOCK, **lost), **{key: limit}).reasons[0].reason


@given(st.floats(1e-6, 0.2))
def test_a_limit_of_the_error_that_would_have_passed_passes(error: float) -> None:
    bad = replace(BLOCK, relative=(0.0, error))
    limit = passing(of(bad, **{"max-relative-l2": 0.0}).reasons[0])
    assert of(bad, **{"max-relative-l2": limit}).status == "passed"
    assert limit <= error * 1.0011


@pytest.mark.parametrize("probe", [GOOD, replace(GOOD, idle=(0, 1)), replace(GOOD, kind="extreme")])
def test_a_contribution_that_is_asked_for_and_cannot_be_had_fails(probe: Comparison) -> None:
    (finding,) = of(probe, **{"min-contribution": 0.5}).reasons
    assert finding.severity == "failed"
    assert "no contribution of output y could be computed" in finding.reason


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
    assert verdict.values["looser.z.min_cosine"] == "at least 0.8, default 0.97"
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


POLICY = FidelityPolicy()


def test_another_scale_is_red_and_an_error_budget_decides_by_itself() -> None:
    scaled = replace(GOOD, cosines=(1.0, 1.0), relative=(0.75, 0.75))
    verdict = of(scaled)
    assert [f.figure for f in verdict.reasons] == ["relative_l2.max"]
    figure = verdict.figure("relative_l2.max")
    assert figure.limit == pytest.approx(2 * 0.03**0.5, abs=1e-4)
    assert of(scaled, **{"max-relative-l2": 1}).status == "passed"
    assert of(scaled, **{"min-cosine": 0.5}).status == "failed"  # It loosens nothing else.
    loose = of(GOOD, **{"max-relative-l2": 1, "min-contribution": 0.9})
    assert loose.values["looser.max_relative_l2"] == "at most 1, default 0.3464"
    assert "looser.min_contribution" not in loose.values
    pooled = Group((BLOCK,), pool=True, implied=False)
    assert pooled.limit(MAX_RELATIVE_L2, POLICY) is pooled.limit(MIN_CONTRIBUTION, POLICY) is None
    assert Group((GOOD,), pool=False).limit(MIN_CONTRIBUTION, POLICY) is None


@pytest.mark.parametrize(
    ("kind", "relative", "status"),
    [
        ("gaussian", (0.01, 0.5), "passed"), ("gaussian", (0.4, 0.5), "failed"),
        ("golden", (0.01, 0.5), "failed"),
    ],
)  # fmt: skip
def test_one_position_of_a_seeded_probe_decides_nothing_beside_an_error_budget(
    kind: str, relative: tuple[float, float], status: str
) -> None:
    """Of a package that is held to its uncompressed one; what was recorded is held one by one."""
    close = Error(0.0, 0.0)
    budget = ErrorBudget(close, close, close, program=close)
    probe = replace(GOOD, kind=kind, relative=relative)
    verdict = judge(Fidelity((probe,), True, {}, budget=budget), POLICY, "mine:it", own=True)
    assert verdict.status == status
    figure = "relative_l2.max" if kind == "golden" else "relative_l2.seeded"
    assert [f.figure for f in verdict.reasons] == [figure] * (status == "failed")


def test_a_contribution_that_the_residual_path_hides_or_doubles_is_red() -> None:
    hidden = replace(BLOCK, contributions=(0.95, 0.47))
    assert [f.figure for f in of(hidden).reasons] == ["contribution.min"]
    assert of(hidden, **{"min-contribution": 0.4}).status == "passed"
    twice = replace(BLOCK, contributions=(1.0, 1.0), relative=(0.2, 0.2))
    (finding,) = of(twice).reasons
    assert "off by 1 of itself, at most 0.69" in finding.reason
    assert of(replace(twice, relative=(0.02, 0.02))).status == "passed"
    assert of(replace(twice, residual=1000.0)).status == "passed"
    assert of(replace(BLOCK, contributions=(0.9, -0.9)), **{"min-cosine": 0.1}).status == "failed"


def errors(*relative: float) -> Sequence[Cell]:
    """The row of a captured probe with these errors at positions 1, 2, ..."""
    probe = replace(comparison(*(0.99,) * len(relative)), relative=relative)
    table = of(probe).table("errors")
    (row,) = table.rows
    return row


def test_statistics_and_histogram_of_every_probe() -> None:
    probe, output, *numbers = errors(*(0.1 + 0.01 * i for i in range(11)), 0.7)
    assert (probe, output) == ("captured chat T=2", "y")
    assert numbers[:9] == [12, 0, 0.19583, 0.155, 0.199, 0.645, 0.7, 0.1, 0.7]
    assert numbers[9:] == [5, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    _, _, *numbers = errors(0.5, NAN, math.inf)
    assert numbers == [3, 2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1, *[0] * 11]
    assert errors(NAN)[2:] == (1, 1, *[None] * 19)
    assert "relative L2 over positions" not in "\n".join(details(of(GOOD)))


@given(st.lists(st.floats(0) | st.just(NAN), min_size=1, max_size=50))
def test_every_position_is_in_the_histogram_or_undefined(relative: list[float]) -> None:
    _, _, positions, undefined, *rest = errors(*relative)
    counts = [count for count in rest[7:] if isinstance(count, int)]
    assert isinstance(undefined, int)
    assert sum(counts) + undefined == positions == len(relative)


OVERFLOW = "fp16 overflows in square_0 (11.8 million): 3,436 squared"


@pytest.mark.parametrize(
    "spoilt",
    [
        replace(GOOD, cosines=(), positions=(), relative=(), one_zero=(0, 1)),
        replace(GOOD, finite=0.5, spoilt=(1,)),
        replace(GOOD, cosines=(0.1, 0.2)),
    ],
    ids=["zeros", "not finite", "low"],
)
def test_an_overflow_is_the_headline(spoilt: Comparison) -> None:
    fidelity = Fidelity((spoilt,), True, {}, overflow=OVERFLOW)
    verdict = judge(fidelity, FidelityPolicy(), "smollm2:L01")
    assert verdict.status == "failed"
    assert verdict.reasons[0].reason == OVERFLOW
    assert row(verdict).startswith(OVERFLOW)
    said = " ".join(finding.reason for finding in verdict.reasons)
    assert "on one side only" not in said
    assert "too little was compared" not in said
    # Without a cause that is known, they are told.
    assert judge(replace(fidelity, overflow=""), FidelityPolicy(), "m:L01").status == "failed"


def test_an_overflow_that_harms_nothing_is_not_told() -> None:
    fidelity = Fidelity((GOOD,), True, {}, overflow=OVERFLOW)
    assert judge(fidelity, FidelityPolicy(), "smollm2:L01").reasons == ()
