"""Functions of one tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import arrays, close, f32, same


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        ("abs", [-1, 0, 2], [1, 0, 2]),
        ("ceil", [-1.5, 0.2], [-1, 1]),
        ("floor", [-1.5, 0.2], [-2, 0]),
        ("round", [0.5, 1.5, -2.5, 2.6], [0, 2, -2, 3]),
        ("sign", [-3, 0, 5], [-1, 0, 1]),
        ("square", [-3, 0.5], [9, 0.25]),
        ("sqrt", [4, 0.25], [2, 0.5]),
        ("exp2", [-1, 3], [0.5, 8]),
    ],
)
def test_literal(op: str, x: list[float], expected: list[float]) -> None:
    same(op, f32(expected), x=f32(x))


@pytest.mark.parametrize(
    ("op", "function", "x"),
    [
        ("acos", math.acos, 0.3), ("asin", math.asin, 0.3), ("atan", math.atan, -2),
        ("atanh", math.atanh, 0.3), ("cos", math.cos, 2), ("cosh", math.cosh, 2),
        ("exp", math.exp, -2), ("sin", math.sin, 2), ("sinh", math.sinh, 2),
        ("tan", math.tan, 1), ("tanh", math.tanh, 0.7), ("erf", math.erf, 0.4),
    ],
)  # fmt: skip
def test_as_mathematics(op: str, function: Any, x: float) -> None:
    close(op, [function(x)], x=f32([x]))


def test_logical_not() -> None:
    same("logical_not", [False, True], x=np.array([True, False]))


def test_inverse_and_its_default() -> None:
    close("inverse", [1 / 2.0001, -1 / 0.9999], x=f32([2, -1]))
    same("inverse", [0.5, 2], x=f32([1.5, 0]), epsilon=0.5)


def test_log_and_its_default() -> None:
    close("log", [0, math.log(2)], x=f32([1, 2]))
    close("log", [math.log(1.5)], x=f32([1]), epsilon=0.5)


def test_rsqrt_and_its_default() -> None:
    close("rsqrt", [0.5, 1e6], x=f32([4, 0]))
    same("rsqrt", [0.5], x=f32([3]), epsilon=1.0)


def test_clip_and_threshold_keep_nan() -> None:
    same("clip", [-1, 0.5, 1, np.nan], x=f32([-9, 0.5, 9, np.nan]), alpha=-1.0, beta=1.0)
    same("threshold", [2, 3, np.nan], x=f32([1, 3, np.nan]), alpha=2.0)


@given(st.floats(-9, 9, width=32))
def test_erf_to_the_last_digits(x: float) -> None:
    found = float(eval_op("erf", x=f32([x]))[0])
    assert found == pytest.approx(math.erf(x), rel=3e-7, abs=2**-149)


def test_erf_at_its_ends() -> None:
    same("erf", [0, 1, -1], x=f32([0, np.inf, -np.inf]))
    assert np.isnan(eval_op("erf", x=f32([np.nan]))).all()


@given(arrays())
def test_shapes_stay(x: Any) -> None:
    for op in ("abs", "exp", "erf", "round", "sign", "square"):
        assert np.shape(eval_op(op, x=x)) == x.shape


@given(st.floats(-7, 7))
def test_erf_in_float64(x: float) -> None:
    found = float(eval_op("erf", x=np.array([x]))[0])
    assert found == pytest.approx(math.erf(x), rel=1e-14, abs=2**-1073)


SIMPLE = ["abs", "atan", "ceil", "cos", "erf", "exp", "exp2", "floor", "inverse", "log", "round",
          "rsqrt", "sign", "sqrt", "square", "tanh"]  # fmt: skip


@pytest.mark.parametrize("op", SIMPLE)
def test_float64_stays_and_rank_zero_too(op: str) -> None:
    found = eval_op(op, x=np.ones((), np.float64))
    assert np.shape(found) == ()
    assert np.asarray(found).dtype == np.float64


@pytest.mark.parametrize("op", ["abs", "sign", "square"])
def test_integers_stay(op: str) -> None:
    assert eval_op(op, x=np.array([-2, 0, 3], np.int32)).dtype == np.int32
