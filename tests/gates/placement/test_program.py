"""The program as a table: forecast, prediction and plan of every compute operation."""

from __future__ import annotations

from dataclasses import replace

from pytest_ane.gates.placement import forecast, judge
from pytest_ane.gates.placement.measure import beside_prediction
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.gates.verdict import Cell, Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.report.verdict import details
from tests.gates.placement.programs import ints, op
from tests.gates.placement.test_predicted import IMAGE, convs, judged


def rows(verdict: Verdict) -> list[tuple[Cell, ...]]:
    """Of each operation: name, forecast, predicted, recorded, time, why."""
    table = verdict.table("program")
    assert table is not None
    assert not table.listed
    return [(row[0], *row[3:]) for row in table.rows]


def test_every_compute_op_in_program_order() -> None:
    argsort = op("argsort", "order", ints(1, 64, 32, 32), x="c7")
    verdict = judged(convs(8, argsort))
    first, *_, last = rows(verdict)
    assert first == ("c0", "eligible", "ANE", None, first[4], "")
    assert isinstance(first[4], float)
    assert 0 < first[4] < 0.1
    name, forecasted, predicted, recorded, _, why = last
    assert (name, forecasted, predicted, recorded) == ("order", "ineligible", "CPU", None)
    assert str(why).startswith("R009; ")
    assert len(rows(verdict)) == 9


def test_an_undecided_op_has_no_unit() -> None:
    *_, (name, _, predicted, _, _, why) = rows(judged(convs(8, op("relu", "last", IMAGE, x="c7"))))
    assert (name, predicted) == ("last", "")
    assert "too close to call" in str(why)


def test_what_a_policy_allows_is_ineligible_all_the_same() -> None:
    argsort = op("argsort", "order", ints(1, 64, 32, 32), x="c7")
    *_, last = rows(judged(convs(8, argsort), allow_off=["order"]))
    assert last[1] == "ineligible"
    assert str(last[-1]).startswith("R009, allowed")


def test_without_a_prediction_unit_and_time_are_unknown() -> None:
    verdict = judge(forecast(convs(1), size_bytes=1), PlacementPolicy(), "own:m")
    assert rows(verdict) == [("c0", "eligible", None, None, None, "")]


def test_a_package_that_is_too_large_is_ineligible_throughout() -> None:
    large = replace(forecast(convs(2), size_bytes=1), size_bytes=3 * 2**30)
    assert {row[1] for row in rows(judge(large, PlacementPolicy(), "own:m"))} == {"ineligible"}


def test_a_plan_records_the_device() -> None:
    operations = (
        PlannedOperation("w", "const"),
        PlannedOperation("c0", "conv", "CPU", why="too small"),
        PlannedOperation("c1", "conv", "ANE"),
        PlannedOperation("c2", "conv"),
        PlannedOperation("c3", "conv", folded=True),
    )
    plan = Plan("coremltools", (PlannedFunction("main", operations),), compute_units="CPU_AND_NE")
    verdict = judge(beside_prediction(plan, convs(8)), PlacementPolicy(), "own:m")
    assert [row[:4] for row in rows(verdict)] == [
        ("c0", None, "ANE", "CPU"),
        ("c1", None, "ANE", "ANE"),
        ("c2", None, "ANE", "none"),
        ("c3", None, "ANE", None),
    ]
    assert [row[-1] for row in rows(verdict)] == ["too small", "", "", "left out by the compiler"]


def test_the_terminal_does_not_print_it() -> None:
    assert "the program:" not in list(details(judged(convs(1))))
