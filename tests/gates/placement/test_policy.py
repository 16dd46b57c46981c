"""What a policy asks: of own packages what people ask, of built shards everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.placement import estimated_work, forecast, judge
from pytest_ane.gates.placement.plans import Plan, PlannedFunction, PlannedOperation, join
from pytest_ane.gates.placement.plans._record import Device
from pytest_ane.gates.placement.segmenter import predict_model
from pytest_ane.gates.verdict import Verdict
from pytest_ane.manifest.policy import PlacementPolicy
from pytest_ane.mlprogram.records import Block, MLModel, Named, Operation
from pytest_ane.report.verdict import row
from tests.gates.placement.programs import const, full, function, half, ints, model, op, value

IMAGE, WEIGHT = half(1, 64, 32, 32), const("w", np.zeros((64, 64, 3, 3), np.float16))
CONV = op("conv", "c", IMAGE, x="x", weight="w", pad_type=value(1))


def program(*after: Operation) -> MLModel:
    """A convolution of 75 MFLOP, and what comes after it."""
    return model(function(WEIGHT, CONV, *after, inputs={"x": IMAGE, "n": ints(1)}))


def judged(subject: MLModel, *, own: bool = True, **policy: Any) -> Verdict:
    found, predictions = forecast(subject, size_bytes=1000), predict_model(subject)
    found = replace(found, predictions=predictions, work=estimated_work(predictions))
    return judge(found, PlacementPolicy.model_validate(policy), "own:m", own=own)


INDEX = (
    op("reduce_argmax", "best", ints(1, 32), x="c", axis=value(1)),
    op("cast", "at", ints(1, 32), x="best"),
)
SMALL = (
    op("slice_by_index", "cut", half(1, 64, 8, 8), x="c", begin=value([0]), end=value([8])),
    op("cast", "wide", full(1, 64, 8, 8), x="cut"),
    op("relu", "r", full(1, 64, 8, 8), x="wide"),
)
"""4,096 operations of 75 million."""
HEAVY = (op("tan", "t", IMAGE, x="c"), *(op("tan", f"t{i}", IMAGE, x="t") for i in range(20)))
"""1.4 million operations, 1.8 %."""
NORM = (op("rsqrt", "r", full(1, 64, 1, 1), x="c"),)


@pytest.mark.parametrize("after", [INDEX, SMALL], ids=["an index", "little work"])
def test_what_does_little_is_listed_in_a_package_of_ones_own(after: tuple[Operation, ...]) -> None:
    verdict = judged(program(*after))
    assert verdict.status == "passed"
    assert "allowed off the ANE" in row(verdict)
    assert "allowed" in {cells["outcome"] for cells in verdict.records("matches")}
    assert judged(program(*after), own=False).status == "failed"
    assert judged(program(*after), max_work_off_ane=0.0).status == "failed"
    assert judged(program(*after), own=False, max_work_off_ane=0.01).status == "passed"


@pytest.mark.parametrize(
    "after",
    [
        (op("conv", "d", full(1, 64, 32, 32), x="c", weight="w"),),
        (op("matmul", "m", full(1, 64, 32, 32), x="c", y="c"),),
        (op("softmax", "s", full(1, 1), x="c"),),
        (op("layer_norm", "l", full(1, 1), x="c"),),
        (op("scaled_dot_product_attention", "a", full(1, 1), query="c", key="c", value="c"),),
        (op("lstm", "l", half(1, 1), x="c"),),
        NORM,
        (op("reshape", "deep", half(1, 1, 1, 1, 1, 64), x="c"),),
        (op("slice_by_index", "s", half(None), x="c", begin="n", end="n"),),
        HEAVY,
    ],
    ids=lambda ops: ops[0].op,
)
def test_what_people_ask_for_stays_red(after: tuple[Operation, ...]) -> None:
    assert judged(program(*after)).status == "failed"


def test_the_share_of_work_is_a_figure_and_a_policy() -> None:
    verdict = judged(program(*HEAVY))
    figure = verdict.figure("work_off_ane")
    assert figure is not None
    assert figure.value == pytest.approx(0.0179, rel=0.01)
    assert "1.8% of the estimated work is off the ANE, above max-work-off-ane = 0.01" in [
        finding.reason for finding in verdict.reasons
    ]
    assert judged(program(*HEAVY), max_work_off_ane=0.05).status == "passed"
    assert judged(program(*NORM), max_work_off_ane=0.9).status == "failed"
    assert judged(program(*NORM), max_work_off_ane=0.9, allow_off=["rsqrt"]).status == "passed"


def test_where_nobody_knows_the_work_nothing_is_excused() -> None:
    found = forecast(program(*INDEX), size_bytes=1000)
    assert judge(found, PlacementPolicy(), "own:m", own=True).status == "failed"


def test_control_flow_goes_with_what_lies_in_it() -> None:
    def branch(*ops: Operation) -> MLModel:
        block = Block((), ops, (ops[-1].name,))
        return program(Operation("cond", {}, (Named("y", IMAGE),), blocks=(block,)))

    assert judged(branch(op("relu", "r", half(1, 64), x="c"))).status == "passed"
    assert judged(branch(op("softmax", "s", half(1, 64), x="c"))).status == "failed"


def planned(subject: MLModel, devices: dict[str, Device], **policy: Any) -> Verdict:
    costs, own = policy.pop("costs", {"c": 0.995}), policy.pop("own", True)
    ops = tuple(
        PlannedOperation(o.name, o.op, devices.get(o.name, "ANE"), cost=costs.get(o.name, 0.001))
        for o in subject.program.walk()
        if o.op != "const"
    )
    plan = Plan("coremltools", (PlannedFunction("main", ops),), compute_units="CPU_AND_NE")
    plan = join(plan, subject)
    return judge(plan, PlacementPolicy.model_validate(policy), "own:m", own=own)


def test_a_plan_is_held_to_the_same() -> None:
    subject = program(*SMALL)
    lost: dict[str, Device] = {"wide": "CPU", "r": "CPU"}
    verdict = planned(subject, lost)
    assert verdict.status == "passed"
    assert "2 ops allowed off the ANE" in row(verdict)
    assert len(verdict.records("off_ane")) == 2
    assert planned(subject, lost, own=False).status == "failed"
    assert planned(subject, {"c": "CPU"}).status == "failed"
    heavy: dict[str, Device] = dict.fromkeys((o.name for o in HEAVY), "GPU")
    assert planned(program(*HEAVY), heavy).status == "failed"
    unknown = dict.fromkeys(("c", "cut", "wide", "r"))
    assert planned(subject, {"wide": "CPU"}, costs=unknown).status == "passed"
    assert planned(subject, {"r": "CPU"}, costs=unknown).status == "failed"


RESAMPLE = op("resample", "y", IMAGE, x="c", coordinates="c")


def test_what_must_be_off_the_ane_fails_on_it() -> None:
    on = planned(program(RESAMPLE), {}, off_ane=["resample"])
    assert [(f.severity, f.where.op) for f in on.reasons] == [("failed", "y")]
    assert planned(program(RESAMPLE), {"y": "CPU"}, off_ane=["resample"]).status == "passed"
    assert planned(program(RESAMPLE), {"y": "CPU"}, own=False, off_ane=["y"]).status == "passed"
    # Ruled out, predicted on the ANE, and too close to call.
    assert judged(program(*HEAVY), off_ane=["tan"]).status == "passed"
    eight = [op("conv", f"c{i}", IMAGE, x=f"c{i - 1}", weight="w") for i in range(1, 9)]
    eight[0] = op("conv", "c1", IMAGE, x="c", weight="w")
    assert judged(program(*eight), off_ane=["c4"]).status == "failed"
    last = op("relu", "last", IMAGE, x="c8")
    assert judged(program(*eight, last), off_ane=["relu"]).status == "unproven"
    note, _ = judged(program(), off_ane=["resmaple"]).findings
    assert "policy.placement.off-ane has 'resmaple'" in note.reason


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ({"spec_version": 9}, "passed"),
        ({"spec_version": 8}, "failed"),
        ({"min_os": "iOS 18"}, "passed"),
        ({"min_os": "macOS 15.2"}, "passed"),
        ({"min_os": "macOS 26"}, "passed"),
        ({"min_os": "iOS 17.4"}, "failed"),
        ({"min_os": "macOS 14"}, "failed"),
    ],
)
def test_an_artifact_that_a_system_refuses_fails(policy: dict[str, Any], status: str) -> None:
    """The program has specification version 9, that of iOS 18 and macOS 15."""
    assert judged(program(), **policy).status == status
    assert planned(program(), {}, **policy).status == status
    unknown = replace(forecast(program(), size_bytes=1), version=0)
    assert judge(unknown, PlacementPolicy(**policy), "m").status == "unproven"
