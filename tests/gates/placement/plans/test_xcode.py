"""Xcode's report.json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans.xcode import read
from tests.gates.placement.plans.samples import XCODE


def test_operations_of_nested_blocks_and_what_else_is_in_the_report() -> None:
    plan = read(json.loads(XCODE))
    weight, conv, loop, add = plan.functions[0].operations
    assert (weight.op, weight.preferred) == ("const", None)
    assert (conv.name, conv.op, conv.preferred, conv.supported, conv.cost) == (
        "y", "conv", "ANE", ("CPU",), 0.25,
    )  # fmt: skip
    assert (loop.op, loop.preferred) == ("while_loop", None)
    assert (add.preferred, add.scope) == ("CPU", (("loop", 0),))
    assert plan.compute_units == "CPU and Neural Engine"
    assert plan.extra["predict"] == {"samples": [0.5]}
    assert plan.extra["deviceName"] == "a Mac"


def with_operation(**operation: Any) -> Any:
    report = json.loads(XCODE)
    program = report["deviceResults"]["modelStructure"]["program"]
    program["_0"]["functions"]["main"]["block"]["operations"] = [operation]
    return report


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"deviceResults": {}}, "modelStructure is absent"),
        ({"deviceResults": {"modelStructure": {"neuralNetwork": {}}}}, "of no ML Program"),
        (with_operation(), "operatorName is absent"),
        (
            with_operation(operatorName="a", deviceUsage={"preferred": {"deviceType": "NPU"}}),
            "'NPU' is no device",
        ),
        (
            with_operation(operatorName="a", deviceUsage={"preferred": {"deviceType": 2}}),
            "deviceType is a number, not a text",
        ),
    ],
)
def test_bad_reports_are_refused(report: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(report)


def test_nesting_is_bounded() -> None:
    block: dict[str, Any] = {"operations": []}
    for _ in range(80):
        block = {"operations": [{"operatorName": "cond", "blocks": [block]}]}
    with pytest.raises(PlanError, match="nested too deeply"):
        read(with_operation(operatorName="cond", blocks=[block]))
