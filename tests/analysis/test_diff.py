"""Two packages compared operation by operation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_ane.analysis.diff import Comparison, compare
from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil import read_model
from tests.mil.packages import Program

X = {"x": np.float32([[3, 4, 0]])}


def chain(factor: float, last: str = "y") -> Program:
    """`a = |x|`, `b = a * factor`, `y = b + b`."""
    program = Program()
    program.input("x", (1, 3))
    program.const("c", factor, "FLOAT32")
    program.op("abs", "a", shape=(1, 3), x="x")
    program.op("mul", "b", shape=(1, 3), x="a", y="c")
    program.op("add", last, shape=(1, 3), x="b", y="b")
    program.output(last)
    return program


def compared(tmp_path: Path, one: Program, other: Program) -> Comparison:
    a, b = (read_model(p.save(tmp_path / name)) for name, p in (("a", one), ("b", other)))
    return compare(a, b, X)


def test_equal_packages(tmp_path: Path) -> None:
    found = compared(tmp_path, chain(2), chain(2))
    assert [(d.op, d.name) for d in found.differences] == [("abs", "a"), ("mul", "b"), ("add", "y")]
    assert all(d.relative == d.largest == 0 for d in found.differences)
    assert found.first_beyond(0) is None


def test_the_first_operation_that_differs(tmp_path: Path) -> None:
    """The result b is (3.03, 4.04, 0) against (3, 4, 0): 0.05 of 5."""
    found = compared(tmp_path, chain(1.01), chain(1))
    worst = found.first_beyond(1e-3)
    assert worst is not None
    assert (worst.op, worst.name) == ("mul", "b")
    assert worst.relative == pytest.approx(0.01, rel=1e-4)
    assert worst.largest == pytest.approx(0.04, rel=1e-4)
    assert found.first_beyond(0.011) is None


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_what_is_not_finite_on_one_side_is_beyond_any_tolerance(
    tmp_path: Path, factor: float
) -> None:
    worst = compared(tmp_path, chain(factor), chain(1)).first_beyond(1e9)
    assert worst is not None
    assert worst.name == "b"


def test_nan_on_both_sides_agrees(tmp_path: Path) -> None:
    assert compared(tmp_path, chain(math.nan), chain(math.nan)).first_beyond(0) is None


def test_a_result_that_should_be_zero_is_infinitely_off(tmp_path: Path) -> None:
    worst = compared(tmp_path, chain(1), chain(0)).first_beyond(1e9)
    assert worst is not None
    assert (worst.name, worst.relative) == ("b", math.inf)


def test_results_of_one_package_only_are_named(tmp_path: Path) -> None:
    longer = chain(1)
    longer.op("exp", "e", shape=(1, 3), x="x")
    found = compared(tmp_path, longer, chain(1))
    assert (found.only_first, found.only_second) == (("e",), ())
    assert [d.name for d in found.differences] == ["a", "b", "y"]


def test_names_that_conversion_to_fp16_adds_to_are_the_same(tmp_path: Path) -> None:
    half = Program()
    half.input("x", (1, 3))
    half.op("abs", "a_cast_fp16", shape=(1, 3), x="x")
    half.op("add", "y", shape=(1, 3), x="a_cast_fp16", y="a_cast_fp16")
    half.output("y")
    found = compared(tmp_path, half, chain(1))
    assert [d.name for d in found.differences] == ["a_cast_fp16", "y"]
    assert found.first_beyond(0) is None


def test_other_shapes_are_said(tmp_path: Path) -> None:
    other = Program()
    other.input("x", (1, 3))
    other.const("axes", [1], "INT32")
    other.const("keep", False, "BOOL")
    other.op("reduce_sum", "y", shape=(1,), x="x", axes="axes", keep_dims="keep")
    other.output("y")
    (difference,) = compared(tmp_path, chain(1), other).differences
    assert difference.note == "shapes [1, 3] and [1]"
    assert difference.beyond(1e9)


def test_packages_with_nothing_in_common(tmp_path: Path) -> None:
    other = Program()
    other.input("x", (1, 3))
    other.op("exp", "zzz", shape=(1, 3), x="x")
    other.output("zzz")
    with pytest.raises(ExecutionError, match="have no output of the same name, so there is"):
        compared(tmp_path, chain(1), other)


def test_other_outputs_are_not_compared_by_what_else_is_the_same(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="have no output of the same name"):
        compared(tmp_path, chain(1), chain(1, last="z"))
