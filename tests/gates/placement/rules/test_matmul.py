"""R028, R029 and R031: products of ranks and depths that fail."""

from __future__ import annotations

import numpy as np
import pytest

from tests.gates.placement.programs import half, op, rules, value


def linear(*shape: int) -> list[str]:
    weight = value(np.zeros((4, shape[-1]), np.float16))
    made = op("linear", "y", half(*shape[:-1], 4), x="x", weight=weight)
    return [rule for _, rule, _ in rules(made, inputs={"x": half(*shape)})]


def matmul(*shape: int, flip: bool = False) -> list[str]:
    y = value(np.zeros((shape[-2] if flip else shape[-1], 4), np.float16))
    made = op("matmul", "y", half(1, 4), x="x", y=y, transpose_x=value(np.array(flip)))
    return [rule for _, rule, _ in rules(made, inputs={"x": half(*shape)})]


@pytest.mark.parametrize(("shape", "found"), [((1, 2, 2, 4, 4), ["R028"]), ((2, 2, 4, 4), [])])
def test_a_matmul_of_rank_5_is_warned_of(shape: tuple[int, ...], found: list[str]) -> None:
    made = op("matmul", "y", half(*shape), x="a", y="b")
    inputs = {"a": half(*shape), "b": half(*shape)}
    assert [rule for _, rule, _ in rules(made, inputs=inputs)] == found


@pytest.mark.parametrize(("shape", "found"), [((1, 1, 2, 2, 4), ["R029"]), ((1, 2, 2, 4), [])])
def test_a_linear_of_rank_5_is_warned_of(shape: tuple[int, ...], found: list[str]) -> None:
    assert linear(*shape) == found


def test_a_product_deeper_than_16384_is_warned_of() -> None:
    assert "R031" in linear(1, 16_385)
    assert "R031" in matmul(1, 16_385)
    assert "R031" in matmul(16_385, 1, flip=True)


def test_a_depth_of_16384_is_fine() -> None:
    assert linear(1, 16_384) == matmul(1, 16_384) == []


@pytest.mark.parametrize(("depth", "deep"), [(32_768, False), (32_769, True)])
def test_a_product_of_two_activations_may_be_twice_as_deep(depth: int, deep: bool) -> None:
    made = op("matmul", "y", half(1, 1), x="a", y="b")
    found = rules(made, inputs={"a": half(1, depth), "b": half(depth, 1)})
    assert (("y", "R031", "ineligible") in found) is deep
