"""What predictions add to the verdict, and the program as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement import Forecast, beside_prediction, forecast, judge
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation
from pytest_ane.gates.placement.segmenter import predict_model
from pytest_ane.gates.verdict import Cell, Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.executor.budget import process_budget
from pytest_ane.mlprogram.records import DType, Feature, Function, MLModel, Operation
from pytest_ane.report.verdict import reasons, row
from tests.gates.placement.programs import const, function, half, ints, model, op, value

IMAGE = half(1, 64, 32, 32)
WEIGHT = const("w", np.zeros((64, 64, 3, 3), np.float16))


def conv(name: str, x: str) -> Operation:
    return op("conv", name, IMAGE, x=x, weight="w", pad_type=value(1))


def convs(count: int, *after: Operation) -> MLModel:
    """A chain of convolutions `c0`, `c1`, ..., each 0.1001 ms on the CPU."""
    chain = [conv(f"c{i}", f"c{i - 1}" if i else "x") for i in range(count)]
    return model(function(WEIGHT, *chain, *after, inputs={"x": IMAGE}))


def measured(program: MLModel) -> Forecast:
    return replace(forecast(program, size_bytes=1000), predictions=predict_model(program))


def judged(program: MLModel, require: str = "predicted", allow_off: Sequence[str] = ()) -> Verdict:
    policy = PlacementPolicy.model_validate({"require": require, "allow_off": list(allow_off)})
    return judge(measured(program), policy, "own:m")


def test_enough_work_is_predicted_on_the_ane() -> None:
    verdict = judged(convs(8))
    assert verdict.status == "passed"
    assert row(verdict) == (
        "on the ANE (predicted: M4, macOS 27) · 8 of 8 ops eligible by rules · conv_ane=8/8 "
        "conv_non_ane=0 · predicted: 8 of 8 compute ops on the ANE in 1 segment (M4, macOS 27) · "
        "margin 0.5131 ms"
    )


def test_a_shard_that_rules_allow_and_costs_do_not_is_a_warning() -> None:
    verdict = judged(convs(1), "forecast")
    assert verdict.status == "passed"
    (finding,) = verdict.warnings
    assert finding.reason == (
        "It is predicted off the ANE, though the rules allow it "
        "(1 of 1 op, too little work, predicted: M4, macOS 27)"
    )
    assert "pytest-ane explain" in finding.remedy
    assert row(verdict).startswith(
        "off the ANE (1 of 1 op, too little work, predicted: M4, macOS 27) · 1 of 1 op "
    )
    assert not judged(convs(8), "forecast").warnings


def test_a_tie_of_what_matters_is_no_warning() -> None:
    """The last operation costs the same on either unit; without its work it decides nothing."""
    relu = judged(convs(8, op("relu", "last", IMAGE, x="c7")), "forecast")
    softmax = judged(convs(8, op("softmax", "last", IMAGE, x="c7")), "forecast")
    assert [verdict.warnings for verdict in (relu, softmax)] == [(), ()]
    assert row(relu).startswith("on the ANE (predicted: ")
    assert "undecided" in row(softmax)


def test_too_little_work_fails_only_where_the_prediction_is_required() -> None:
    program = convs(1)
    assert judged(program, "forecast").status == "passed"
    verdict = judged(program)
    assert verdict.status == "failed"
    (reason,) = reasons(verdict)
    assert reason.startswith("conv `c0` is predicted on the CPU: too little work, 0.1546 ms short")
    assert "pytest-ane explain" in reason


def test_a_tie_is_unproven() -> None:
    """The last operation costs the same on either unit: 0.125 ms to switch, or to end."""
    verdict = judged(convs(8, op("relu", "last", IMAGE, x="c7")))
    assert verdict.status == "unproven"
    (reason,) = reasons(verdict)
    assert reason.startswith("relu `last` is undecided: another unit costs")
    assert "1 op undecided" in row(verdict)
    assert judged(convs(8, op("relu", "last", IMAGE, x="c7")), "forecast").status == "passed"


SIZE = op("slice_by_size", "part", half(None), x="x", begin=value([0]), size="n")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (function(SIZE, inputs={"x": half(64), "n": ints(1)}), "shapes are known only at run time"),
        (function(WEIGHT, op("relu", "y", half(64, 64, 3, 3), x="w")), "folds all its ops"),
    ],
)
def test_nothing_known_is_unproven(made: Function, says: str) -> None:
    verdict = judged(model(made))
    assert verdict.status != "passed"
    told = [*reasons(verdict), str(verdict.values.get("predicted"))]
    assert any("Nothing is predicted" in reason for reason in told)
    assert any(says in reason for reason in told)


def test_shapes_are_held_against_the_budget() -> None:
    kind = half(1, None, None)
    tiled = op("tile", "y", kind, x="x", reps=value([1, 1, 2**20]))
    feature = Feature("x", DType.FP16, (1, 1, 8), ranges=((1, 1), (1, 64), (8, 8)))
    program = model(function(tiled, inputs={"x": half(1, None, 8)}), features=[feature])
    with process_budget(memory=2**20):
        verdict = judged(program)
    assert verdict.status == "unproven"
    (reason,) = reasons(verdict)
    assert "tile 'y' of 33.6 MB, over the budget" in reason


def linear(channels: int, name: str = "main") -> Function:
    """A linear layer over T rows."""
    kind = half(1, None, channels)
    weight = const("w", np.zeros((channels, channels), np.float16))
    bias = value(np.zeros(channels, np.float16))
    made = op("linear", "y", kind, x="x", weight="w", bias=bias)
    return function(weight, made, inputs={"x": kind}, name=name)


def flexible(least: int, greatest: int, *others: Function) -> MLModel:
    """A linear layer of 1,024 channels over T rows, and other functions."""
    ranges = ((1, 1), (least, greatest), (1024, 1024))
    feature = Feature("x", DType.FP16, (1, least, 1024), ranges=ranges)
    return model(linear(1024), *others, features=[feature])


def test_a_function_has_no_shapes_of_another() -> None:
    """Both name their input `x`, and only that of `main` is declared."""
    program = flexible(64, 64, linear(8, "other"))
    assert [(p.function, p.compute[0].unit) for p in predict_model(program)] == [
        ("other", None),
        ("main", "ANE"),
    ]
    verdict = judged(program)
    assert verdict.status == "unproven"
    (reason,) = reasons(verdict)
    assert "function other: its inputs are flexible; choose the function by name" in reason


def test_the_weakest_t_of_a_flexible_input_decides_and_an_op_is_told_once() -> None:
    program = flexible(1, 64)
    predictions = predict_model(program)
    assert [(p.tokens, p.compute[0].unit) for p in predictions] == [(1, "CPU"), (64, "ANE")]
    verdict = judged(program)
    assert verdict.status == "failed"
    assert "is predicted on the CPU at T = 1" in reasons(verdict)[0]
    assert "(M4, macOS 27, T = 1)" in row(verdict)
    assert judged(flexible(64, 2048)).status == "passed"
    assert [p.tokens for p in predict_model(flexible(64, 2048))] == [64, 512]
    # Off the ANE at T = 1 and at T = 2; at T = 64 it is on it.
    (reason,) = reasons(judged(flexible(1, 2)))
    assert "T = 1" in reason
    assert [f.severity for f in judged(flexible(1, 64)).reasons] == ["failed"]


def test_ops_allowed_off_are_counted_and_not_judged() -> None:
    argsort = op("argsort", "order", ints(1, 64, 32, 32), x="c7")
    program = convs(8, argsort)
    for patterns in (["argsort"], ["ord*"], ["*sort", "c?"]):
        verdict = judged(program, "predicted", patterns)
        assert (verdict.status, verdict.warnings) == ("passed", ())
        assert verdict.values["allowed_off_ops"] == 1
        assert "1 op allowed off the ANE" in row(verdict)
    verdict = judged(program, "forecast", ["order"])
    assert (verdict.status, verdict.values["outcome"]) == ("passed", "eligible")
    # It may be for another shard of the model, so it is no warning.
    verdict = judged(convs(8), allow_off=["lsmt"])
    assert (verdict.status, verdict.warnings) == ("passed", ())
    (note,) = (finding for finding in verdict.findings if finding.severity == "note")
    assert "'lsmt'" in note.reason
    large = replace(measured(convs(8)), size_bytes=3 * 2**30)
    policy = PlacementPolicy(allow_off=("*",))
    assert judge(large, policy, "own:m").status == "failed"


def planned(*devices: str, units: str = "CPU_AND_NE") -> Plan:
    operations = tuple(
        PlannedOperation(f"c{i}", "conv", device, ("ANE", "CPU"))
        for i, device in enumerate(devices)
    )
    return Plan("coremltools", (PlannedFunction("main", operations),), compute_units=units)


ONE, EIGHT = convs(1), convs(8)


@pytest.mark.parametrize(
    ("devices", "units", "program", "status", "tables", "chips"),
    [
        (["ANE"] * 8, "CPU_AND_NE", EIGHT, "passed", ["program"], ["M4"]),
        (["CPU"], "CPU_ONLY", ONE, "failed", ["off_ane", "program"], []),
        # As predicted, and still red, for a plan decides.
        (["CPU"], "CPU_AND_NE", ONE, "failed", ["off_ane", "program"], ["M4"]),
        ([*["ANE"] * 6, "CPU", "GPU"], "CPU_AND_NE", EIGHT, "failed",
         ["off_ane", "contradictions", "program"], ["M4"]),
        (["CPU"] * 8, "ALL", EIGHT, "failed",
         ["off_ane", "contradictions", "assumptions", "program"], ["M4 Pro"]),
    ],
)  # fmt: skip
def test_a_plan_decides_and_what_contradicts_it_is_shown_beside_it(
    devices: list[str], units: str, program: MLModel, status: str, tables: list[str], chips: Any
) -> None:
    plan = beside_prediction(planned(*devices, units=units), program)
    assert [p.prediction.chip for p in plan.predictions] == chips
    verdict = judge(plan, PlacementPolicy(), "own:m")
    assert (verdict.status, [table.name for table in verdict.tables]) == (status, tables)
    if "contradictions" in tables and "assumptions" not in tables:
        rows = verdict.table("contradictions").rows
        assert [row[:4] for row in rows] == [("conv", "c6", "CPU", "ANE"),
                                             ("conv", "c7", "GPU", "ANE")]  # fmt: skip
        allowed = PlacementPolicy(require="predicted", allow_off=("c6", "c7"))
        verdict = judge(plan, allowed, "own:m")
        assert (verdict.status, verdict.values["allowed_off_ops"]) == ("passed", 2)


def rows(verdict: Verdict) -> list[tuple[Cell, ...]]:
    """Of each operation: name, forecast, predicted, recorded, time, why."""
    table = verdict.table("program")
    assert not table.listed
    return [(row[0], *row[3:]) for row in table.rows]


def test_every_compute_op_in_program_order() -> None:
    argsort = op("argsort", "order", ints(1, 64, 32, 32), x="c7")
    verdict = judged(convs(8, argsort))
    assert [f.where.op for f in verdict.findings if f.severity == "failed"] == ["order"]
    first, *_, last = rows(verdict)
    assert first == ("c0", "eligible", "ANE", None, first[4], "")
    assert isinstance(first[4], float)
    assert 0 < first[4] < 0.1
    assert last[:4] == ("order", "ineligible", "CPU", None)
    assert str(last[-1]).startswith("R009; ")
    assert len(rows(verdict)) == 9
    *_, last = rows(judged(convs(8, argsort), allow_off=["order"]))
    assert (last[1], str(last[-1])[:13]) == ("ineligible", "R009, allowed")
    *_, last = rows(judged(convs(8, op("relu", "last", IMAGE, x="c7"))))
    assert (last[0], last[2]) == ("last", "")
    assert "too close to call" in str(last[-1])
    verdict = judge(forecast(convs(1), size_bytes=1), PlacementPolicy(), "own:m")
    assert rows(verdict) == [("c0", "eligible", None, None, None, "")]
    large = forecast(convs(2), size_bytes=3 * 2**30)
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
