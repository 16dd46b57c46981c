"""R027 (rank), R030 (extents) and R032 (wide heads)."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gates.placement.programs import const, foretell, half, op, rules, value


def reshape(*shape: int | None) -> list[tuple[str, str, str]]:
    return rules(op("reshape", "y", half(*shape), x="x", shape=value([1])))


def test_a_result_of_rank_6_is_ineligible() -> None:
    (finding,) = foretell(op("reshape", "y", half(1, 2, 2, 2, 2, 2), x="x")).matches
    assert finding.rule == "R027"
    assert finding.why == "fp16[1,2,2,2,2,2] has rank 6; the ANE takes rank 5 at most."


def test_reading_rank_6_is_ineligible_too() -> None:
    found = rules(op("reshape", "y", half(32), x="x"), inputs={"x": half(1, 2, 2, 2, 2, 2)})
    assert found == [("y", "R027", "ineligible")]


def test_rank_5_is_fine() -> None:
    assert reshape(1, 2, 2, 2, 4) == []


@pytest.mark.parametrize(
    "shape",
    [(1, 240_000), (1, 1, 65_537), (65_537, 8, 1, 1), (1, 8, 1, 65_537), (1, 65_537, 1, 2)],
)
def test_an_axis_longer_than_any_chip_takes_is_ineligible(shape: tuple[int, ...]) -> None:
    assert ("y", "R030", "ineligible") in reshape(*shape)


def test_the_message_names_tensor_and_axis() -> None:
    (finding,) = foretell(op("reshape", "y", half(1, 1, 240_000), x="x")).matches
    assert finding.why == (
        "Axis 2 of fp16[1,1,240000] is longer than 65,536, the most the ANE takes."
    )


@pytest.mark.parametrize("shape", [(1, 8, 1, 16_385), (1, 8, 65_536, 2), (1, 20_000), (16_385,)])
def test_an_axis_that_only_newer_chips_take_is_warned_of(shape: tuple[int, ...]) -> None:
    assert reshape(*shape) == [("y", "R030", "warned")]


def test_more_channels_of_a_convolution_are_warned_of_as_reports_differ() -> None:
    conv = op("conv", "y", half(1, 262_144, 1, 2), x="x")
    assert rules(conv) == [("y", "R030", "warned")]


@pytest.mark.parametrize(
    "shape",
    [
        (1, 12_288, 1, 64),  # a slice of a vocabulary as a 1x1 convolution
        (1, 50_016, 1, 4),  # a quarter of Phi-4's: measured on the ANE
        (1, 65_536, 1, 2),
        (65_536, 8, 1, 2),
        (20_000, 8),
        (1, 16_384),
        (1, 8, 1, None),
    ],
)
def test_extents_within_the_limits_are_fine(shape: tuple[int | None, ...]) -> None:
    assert reshape(*shape) == []


def test_constants_of_any_extent_are_fine() -> None:
    table = const("table", np.zeros((70_000, 1), np.float16))
    assert rules(table, op("gather", "y", half(2, 1), x="table", indices=value([0, 1]))) == []


def head(kind: str, outputs: int, **given: object) -> list[tuple[str, str, str]]:
    result = half(1, outputs)
    return rules(op(kind, "y", result, x="x", **given), inputs={"x": half(1, 4)})  # type: ignore[arg-type]


def test_a_wide_linear_head_is_warned_of() -> None:
    weight = value(np.zeros((17_408, 4), np.float16))
    assert ("y", "R032", "warned") in head("linear", 17_408, weight=weight)


def test_a_wide_matmul_by_a_constant_is_warned_of() -> None:
    assert ("y", "R032", "warned") in head("matmul", 17_408, y=value(np.zeros((4, 17_408), "f2")))


def test_a_linear_of_13088_outputs_is_fine() -> None:
    assert head("linear", 13_088, weight=value(np.zeros((13_088, 4), np.float16))) == []


def test_a_matmul_of_two_activations_is_no_head() -> None:
    found = rules(
        op("matmul", "y", half(1, 1, 4, 20_000), x="q", y="k"),
        inputs={"q": half(1, 1, 4, 8), "k": half(1, 1, 8, 20_000)},
    )
    assert [rule for _, rule, _ in found] == ["R030"]
