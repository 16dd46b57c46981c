"""Verdicts of error budgets: which of three causes the first sentence names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.gates.fidelity import Fidelity, judge
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.probes.error_budget import Error, ErrorBudget
from tests.gates.fidelity.verdicts import CAPTURED, GOOD, comparison

SMALL = Error(0.001, 0.0005, "gaussian T=2 #0", "y")
ROUNDING = Error(0.004, 0.0015, "gaussian T=2 #0", "y")
COMPRESSION = Error(0.1, 0.05, "gaussian T=2 #0", "y")
BUDGET = ErrorBudget(SMALL, ROUNDING, COMPRESSION)
TOTAL = Error(0.1, 0.0501, "gaussian T=2 #0", "y")


def verdict(
    budget: ErrorBudget = BUDGET, total: Error = TOTAL, *comparisons: Any, **policy: Any
) -> Verdict:
    every = comparisons or (GOOD, CAPTURED)
    fidelity = Fidelity(tuple(every), True, {"backend": "cpu"}, budget, total)
    return judge(fidelity, FidelityPolicy(**policy), "smollm2:L01")


def first(**parts: Any) -> str:
    return verdict(replace(BUDGET, **parts)).reasons[0].reason


def wrong(greatest: float = 0.2, rms: float = 0.1, **more: Any) -> Error:
    return Error(greatest, rms, "captured chat T=2", "y", 7, **more)


def test_a_right_shard_passes_and_shows_its_errors() -> None:
    v = verdict()
    assert v.status == "passed"
    assert v.values["algebra.max"] == 0.001
    figure = v.figure("total_error.rms")
    assert figure.limit == pytest.approx(0.05753, rel=1e-3)


@pytest.mark.parametrize(
    ("algebra", "sentence"),
    [
        (wrong(gain=1.065), "wrong function: 0.2 of what L01 adds is wrong, and compression has no "
         "part in it; gain 1.06 (worst in captured chat T=2, position 7)"),
        (wrong(lengths=((1, 0.0), (2, 0.2), (64, 0.15))), "; only for T = 2 and more ("),
        (wrong(lengths=((1, 0.2), (2, 0.0))), "; only for T = 1 ("),
        (wrong(lengths=((1, 0.0), (2, 0.2), (4, 0.2), (5, 0.0))), "; only for T = 2, 4 ("),
        (wrong(lengths=((1, 0.2), (2, 0.2))), "part in it (worst"),
        # Of the probes at T = 2 some are right: an id that few of them have, and no length.
        (wrong(lengths=((1, 0.0), (2, 0.2)), least=(0.0, 0.001)), "part in it (worst"),
        (wrong(lengths=((1, 0.0), (2, 0.2)), least=(0.0, 0.15)), "; only for T = 2 ("),
        # Shorter calls do not come to the position that is wrong.
        (wrong(lengths=((1, 0.0), (2, 0.0), (3, 0.2)),
               positions=((0, 0.0), (1, 0.0), (2, 0.2))), "part in it; at position 2 ("),
        (wrong(1e3), "wrong function: 1,000 times what L01 adds is wrong"),
        (wrong(12.34), "wrong function: 12 times what L01 adds is wrong"),
        (wrong(positions=((0, 0.0), (1, 0.0), (2, 0.2), (3, 0.2))), "; at position 2 and more ("),
        (wrong(positions=tuple((i, 0.2 * (i == 3)) for i in range(9))), "; at position 3 ("),
        (wrong(channels=(16, 31)), "; channels 16 to 31 ("),
        (wrong(experts=((0, 0.0), (3, 1.0), (5, 1.0))), "; experts 3, 5 ("),
        (wrong(adds=False), "0.2 of what L01 gives is wrong"),
        (wrong(0.01, 0.003), "wrong function: 0.01 of what L01 adds is wrong"),
        (wrong(float("inf"), float("inf")), "wrong function: the output is NaN or infinite"),
        (wrong(float("nan")), "wrong function: "),
    ],
)  # fmt: skip
def test_a_wrong_function(algebra: Error, sentence: str) -> None:
    assert sentence in first(algebra=algebra)


def test_another_program_than_that_which_is_named() -> None:
    plain = replace(BUDGET, plain="fp16.mlpackage")
    v = verdict(replace(plain, program=wrong(0.03, 0.01)))
    assert v.status == "failed"
    assert v.reasons[0].reason.startswith(
        "wrong function: with the weights of fp16.mlpackage put in, in float32, 0.03 of what L01 "
        "adds is wrong"
    )
    assert verdict(replace(plain, program=SMALL)).status == "passed"
    unknown = verdict(replace(plain, unpaired=("w", "v")))
    assert unknown.status == "unproven"
    assert "2 compressed weights (w, v) have no counterpart there" in unknown.reasons[0].reason
    assert "uncompressed = " in unknown.reasons[0].remedy


ALONE = replace(
    BUDGET, algebra=None, compression=None, loss=wrong(0.4, 0.1), explained=0.05, way="in all"
)


@pytest.mark.parametrize(
    ("beyond", "status", "says"),
    [
        (0.9, "passed", ""),
        (1.2, "unproven", "compression may not be all of it: 0.4 of what L01 adds is wrong, and "
         "its tables and scales explain 0.05 (rms); 1.2 times what they may in all"),
        (2.0, "failed", "wrong function: no compression of this file loses that much: 0.4 of what"),
    ],
)  # fmt: skip
def test_golden_tensors_alone(beyond: float, status: str, says: str) -> None:
    v = verdict(replace(ALONE, beyond=beyond))
    assert v.status == status
    assert all(finding.reason.startswith(says) for finding in v.reasons)
    if status == "unproven":
        assert v.reasons[0].remedy.endswith('uncompressed = "x-fp16.mlpackage"')


def test_of_tables_that_explain_everything_nothing_can_be_told() -> None:
    assert verdict(replace(ALONE, explained=0.7, beyond=2.0)).status == "unproven"


def test_golden_tensors_that_the_package_gave_itself() -> None:
    v = verdict(replace(ALONE, loss=wrong(0.001, 0.0005)))
    assert v.status == "unproven"
    assert v.reasons[0].reason.startswith("the golden tensors are as the package itself gives them")


def test_what_fp16_does_not_hold() -> None:
    squares = "fp16 overflows in square_0 (11.8 million): 3,436 squared"
    reason = first(rounding=wrong(1.0, 0.4), overflow=squares)
    assert reason.startswith("fp16 overflows: 1 of what L01 adds")
    assert first(rounding=wrong(0.2)).startswith("fp16 rounds too much")


def test_what_three_errors_do_not_explain() -> None:
    v = verdict(BUDGET, replace(TOTAL, rms=0.07))
    assert v.reasons[0].reason.startswith(
        "the run: the output is off by 0.07 of what L01 adds (rms), and function 0.0005, fp16 "
        "0.0015, compression 0.05 explain 0.058"
    )
    assert verdict(BUDGET, replace(TOTAL, rms=0.055)).status == "passed"
    nothing = ErrorBudget(SMALL, ROUNDING, None)
    assert verdict(nothing, replace(TOTAL, rms=0.009)).status == "passed"
    assert verdict(nothing, replace(TOTAL, rms=0.011)).status == "failed"


def test_a_low_cosine_or_nan_of_a_right_function_is_compression() -> None:
    low = comparison(0.99, 0.91, 0.95)
    reasons = [f.reason for f in verdict(BUDGET, TOTAL, GOOD, low).reasons]
    assert reasons[0] == (
        "compression: it costs 0.05 of what L01 adds (rms), function 0.0005, fp16 0.0015"
    )
    assert "cosine 0.91" in reasons[1]
    nan = wrong(math.inf, math.inf)
    spoilt = replace(GOOD, finite=0.5)
    budget = replace(BUDGET, compression=nan)
    reasons = [f.reason for f in verdict(budget, nan, spoilt).reasons]
    assert reasons[0].startswith("compression: the compressed program gives NaN or infinity, and")
    assert "is NaN or infinite" in reasons[1]


def test_what_is_low_everywhere_decides_and_one_position_of_one_seed_does_not() -> None:
    low = replace(GOOD, probe="gaussian T=2 #1", cosines=(0.9386, *GOOD.cosines[1:]))
    v = verdict(BUDGET, TOTAL, *[GOOD] * 9, low)
    assert (v.status, v.values["cosine.position.min"]) == ("passed", 0.9386)
    # Without a budget nothing else sees a position.
    alone = Fidelity((*[GOOD] * 9, low), True, {})
    assert judge(alone, FidelityPolicy(), "smollm2:L01").status == "failed"


@pytest.mark.parametrize(
    ("kind", "cosine", "status"),
    [
        ("gaussian", 0.8, "failed"), ("unit-norm", 0.9, "passed"), ("golden", 0.95, "failed"),
        ("extreme", 0.95, "failed"),
        # It has 12 positions, which differ by the seed where 4 bits cost much.
        ("massive", 0.95, "passed"),
    ],
)  # fmt: skip
def test_a_mean_decides_by_kind(kind: str, cosine: float, status: str) -> None:
    seeded = [replace(GOOD, probe=f"gaussian T=2 #{i}") for i in range(4)]
    low = replace(GOOD, kind=kind, probe=f"{kind} low", cosines=(cosine,) * len(GOOD.cosines))
    assert verdict(BUDGET, TOTAL, *seeded, low).status == status


def test_a_mean_over_seeded_probes_has_a_figure_of_its_own() -> None:
    low = replace(GOOD, cosines=tuple(0.9 for _ in GOOD.cosines))
    seeded = [replace(low, probe=f"gaussian T=2 #{i}") for i in range(3)]
    v = verdict(BUDGET, TOTAL, *seeded, CAPTURED)
    mean, table = v.figure("cosine.seeded"), v.table("probes")
    assert (mean.label, mean.limit, mean.note) == ("mean cosine", 0.97, "3 seeded probes")
    says = v.reasons[1].reason
    assert says.startswith("the mean cosine of 3 seeded probes is 0.9, below min-cosine = 0.97 (")
    assert v.figure("cosine.min").passes
    # The policy asks nothing of a single seeded probe's lowest cosine.
    assert [c.limit for c in table.columns if "cosine" in c.title and c.limit] == []
    # A captured probe is held to the limit by position; without a budget every one is.
    spoilt = replace(CAPTURED, cosines=(0.8, 0.99))
    real = verdict(BUDGET, TOTAL, GOOD, spoilt).figure("cosine.min")
    assert (real.value, real.note) == (0.8, "worst of 2 probes")
    alone = judge(Fidelity((low, CAPTURED), True, {}), FidelityPolicy(), "smollm2:L01")
    column = alone.table("probes").columns[1]
    assert (column.title, column.limit) == ("cosine", 0.97)


def test_without_a_budget_the_verdict_says_why() -> None:
    fidelity = Fidelity((GOOD,), True, {}, unsplit="its program before compression is not known")
    v = judge(fidelity, FidelityPolicy(), "own:x")
    assert (v.status, v.findings[0].severity) == ("passed", "note")
    assert v.findings[0].reason.startswith("its program before compression")


def test_bounds_are_policy_and_another_machine_may_round_otherwise() -> None:
    budget = replace(BUDGET, algebra=wrong(0.03, 0.001))
    assert verdict(budget).status == "failed"
    assert verdict(budget, TOTAL, max_algebra=0.05).status == "passed"
    assert verdict(BUDGET, replace(TOTAL, rms=0.07), max_total_ratio=1.5).status == "passed"
    fidelity = Fidelity((GOOD,), True, {"backend": "coreml"}, ErrorBudget(SMALL, ROUNDING, None))
    for rms, status in ((0.03, "passed"), (0.05, "failed")):
        measured = replace(fidelity, total=replace(TOTAL, rms=rms))
        assert judge(measured, FidelityPolicy(), "smollm2:L01").status == status
