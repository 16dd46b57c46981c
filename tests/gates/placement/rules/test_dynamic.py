"""R053 (extents from values), R056 (unbounded inputs), R055 and R062 (enumerated shapes)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest

from pytest_ane.gates.placement import Forecast, forecast
from pytest_ane.mlprogram.records import DType, Feature, Operation, StateType, ValueType
from tests.gates.placement.programs import (
    const,
    foretell,
    function,
    half,
    ints,
    model,
    op,
    rules,
    value,
)

IN = {"x": half(1, 8, 1, None), "n": ints(1)}


def ineligible(*operations: Operation) -> list[tuple[str, str, str]]:
    """What keeps ops off, but that they are of integers."""
    found = rules(*operations, inputs=IN)
    return [match for match in found if match[2] == "ineligible" and match[1] != "R022"]


@pytest.mark.parametrize(
    "operation",
    [
        op("slice_by_index", "y", half(1, 8, 1, None), x="x", begin=value([0]), end="n"),
        op("slice_by_index", "y", half(1, 8, 1, None), x="x", end=value([4]), begin="n"),
        op("slice_by_size", "y", half(1, 8, 1, None), x="x", begin=value([0]), size="n"),
        op("range_1d", "y", ints(None), start=value(0), end="n", step=value(1)),
        op("reshape", "y", half(None, 8), x="x", shape="n"),
        op("fill", "y", half(None), shape="n", value=value(0.5)),
        op("tile", "y", half(None, 8), x="x", reps="n"),
        op("pad", "y", half(None, 8), x="x", pad="n"),
    ],
    ids=lambda operation: "-".join((operation.op, *operation.inputs)),
)
def test_extents_from_runtime_values_are_ineligible(operation: Operation) -> None:
    assert ineligible(operation) == [("y", "R053", "ineligible")]


def test_the_message_names_the_parameter() -> None:
    cut = op("slice_by_index", "y", half(None), x="x", begin=value([0]), end="n")
    (finding,) = foretell(cut, inputs=IN).matches
    assert finding.why == "Its end derives from values that are known only at run time."


def test_values_stay_runtime_values_through_arithmetic() -> None:
    found = ineligible(
        op("add", "m", ints(1), x="n", y=value([1])),
        op("concat", "end", ints(2), values=["m", "n"]),
        op("slice_by_index", "y", half(None), x="x", begin=value([0, 0]), end="end"),
    )
    assert found == [("y", "R053", "ineligible")]


def test_extents_from_the_shape_of_a_flexible_input_are_plain_propagation() -> None:
    found = rules(
        op("shape", "s", ints(4), x="x"),
        op("gather", "t", ints(), x="s", indices=value(3), axis=value(0)),
        op("add", "end", ints(), x="t", y=value(1)),
        op(
            "slice_by_index", "mask", half(1, None), x=value([[0.5] * 9]), begin=value([0]), end="t"
        ),
        op("range_1d", "positions", ints(None), start=value(0), end="t", step=value(1)),
        op("reshape", "y", half(None, 8), x="x", shape="end"),
        inputs=IN,
    )
    assert found == [("s", "R005", "ineligible")], "only the shape op itself has no ANE form"


def test_the_shape_of_a_data_dependent_tensor_is_data_dependent() -> None:
    found = ineligible(
        op("range_1d", "r", ints(None), start=value(0), end="n", step=value(1)),
        op("shape", "s", ints(1), x="r"),
        op("reshape", "y", half(None, 8), x="x", shape="s"),
    )
    assert [(place, rule) for place, rule, _ in found] == [
        ("r", "R053"),
        ("s", "R005"),
        ("y", "R053"),
    ]


def test_a_masked_end_is_not_read() -> None:
    mask = const("mask", np.array([True, True]))
    cut = op("slice_by_index", "y", half(1, 8), x="x", begin=value([0]), end="n", end_mask="mask")
    assert rules(mask, cut, inputs=IN) == []


def test_a_cache_written_at_a_runtime_position_keeps_its_extents() -> None:
    write = op("slice_update", "y", half(1, 8, 1, 64), x="x", update="x", begin="n", end="n")
    assert ineligible(write) == []


def ranged(*ranges: tuple[int, int | None]) -> list[tuple[str, str, str]]:
    feature = Feature("x", DType.FP16, (1, 8, 1, 4), ranges)
    flexible = function(op("relu", "y", half(1, 8, 1, None), x="x"), inputs=IN)
    found = forecast(model(flexible, features=[feature]), size_bytes=1).matches
    return [(finding.op, finding.rule, finding.why) for finding in found]


def test_an_input_without_an_upper_bound_is_ineligible() -> None:
    why = "Axis 3 of input `x` has no upper bound."
    assert ranged((1, 1), (8, 8), (1, 1), (1, None)) == [("x", "R056", why)]


def test_a_bounded_input_is_fine() -> None:
    assert ranged((1, 1), (8, 8), (1, 1), (1, 64)) == []
    assert ranged() == []


def enumerated(
    *shapes: tuple[int, ...], inputs: Mapping[str, ValueType] = MappingProxyType(IN)
) -> Forecast:
    feature = Feature("x", DType.FP16, (1, 8, 1, 4), enumerated=shapes)
    flexible = function(op("relu", "y", half(1, 8, 1, None), x="x"), inputs=inputs)
    return forecast(model(flexible, features=[feature]), size_bytes=1)


def test_enumerated_shapes_are_warned_of_and_the_program_stays_eligible() -> None:
    found = enumerated((1, 8, 1, 4), (1, 8, 1, 8))
    (finding,) = found.matches
    assert (finding.rule, finding.outcome) == ("R055", "warned")
    assert finding.why == "Input `x` has 2 enumerated shapes."
    assert (found.outcome, found.warned()) == ("eligible", 0), "no single op is meant"


def test_a_fixed_shape_is_not_enumerated() -> None:
    assert enumerated().matches == ()


def test_enumerated_shapes_beside_a_state_are_warned_of_twice() -> None:
    found = enumerated((1, 8, 1, 4), inputs={**IN, "cache": StateType(half(1, 32))})
    assert [finding.rule for finding in found.matches] == ["R055", "R062"]


def test_a_state_alone_is_fine() -> None:
    assert enumerated(inputs={**IN, "cache": StateType(half(1, 32))}).matches == ()
