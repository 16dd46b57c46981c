"""The numeric policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.executor import dtypes
from pytest_ane.mlprogram.executor.dtypes import (
    Precision,
    carried,
    converter,
    round_fp16,
    rounded,
    widen,
)
from pytest_ane.mlprogram.records import DType, TensorType


def nearest(*values: float) -> list[float]:
    return [float(v) for v in round_fp16(np.array(values, np.float32))]


def converted(x: Any, dtype: DType, precision: Precision, moves: bool) -> Any:
    with np.errstate(all="ignore"):
        return converter(TensorType(dtype), precision, moves)(x)


def test_fp16_keeps_eleven_bits() -> None:
    assert nearest(2048, 2049, 2051) == [2048, 2048, 2052]
    assert nearest(0.1) == [0.0999755859375]


def test_ties_go_to_the_even_neighbour() -> None:
    assert nearest(1 + 2**-11, 1 + 3 * 2**-11) == [1, 1 + 2**-9]


def test_overflow_gives_infinity_as_fp16_would() -> None:
    assert nearest(65504, 65519.99, 65520, -1e6) == [65504, 65504, np.inf, -np.inf]


def test_what_cannot_be_represented_below() -> None:
    assert nearest(2**-24, 2**-25, 3 * 2**-25, 2**-14 + 2**-25) == [2**-24, 0, 2**-23, 2**-14]


def test_nan_infinity_and_signed_zero_stay() -> None:
    values = round_fp16(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32))
    assert np.isnan(values[0])
    assert values[1:3].tolist() == [np.inf, -np.inf]
    assert np.signbit(values[3])


def test_every_nan_stays_nan() -> None:
    bits = np.array([0x7FFFFFFF, 0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    assert np.isnan(round_fp16(bits.view(np.float32))).all()


@given(st.integers(0, 2**32 - 1))
def test_every_bit_pattern_rounds_as_numpys_cast_does(bits: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(round_fp16(x), expected)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(round_fp16(x)[zeros]), np.signbit(expected[zeros]))


@given(st.integers(0, 2**16 - 1))
def test_fp16_numbers_stay_as_they_are(bits: int) -> None:
    x = np.array([bits], np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(round_fp16(x), x)


def test_a_result_is_rounded_where_its_type_says_fp16() -> None:
    x = np.array([2049.0, 1e5], np.float32)
    assert converted(x, DType.FP16, "as-typed", False).tolist() == [2048, np.inf]
    assert converted(x, DType.FP32, "as-typed", False).tolist() == [2049, 1e5]
    assert converted(x, DType.FP16, "float32", False).tolist() == [2049, 1e5]


def test_moved_values_are_not_rounded_again() -> None:
    x = np.array([2048.0], np.float32)
    assert converted(x, DType.FP16, "as-typed", True) is x


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (DType.FP16, np.float32),
        (DType.BF16, np.float32),
        (DType.INT32, np.int32),
        (DType.BOOL, np.bool_),
        (DType.UINT6, np.uint8),
        (DType.INT4, np.int8),
    ],
)
def test_how_types_are_carried(dtype: DType, kind: type) -> None:
    assert carried(dtype) == kind


def test_integers_are_cut_off_towards_zero() -> None:
    assert converted(np.array([1.9, -1.9]), DType.INT32, "as-typed", False).tolist() == [1, -1]


def test_numpy_rounds_and_widens_until_loading_the_kernels_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both give the same bits: every fp16 number, every tie between two, and their neighbours."""
    kernels = dtypes.load_kernels()
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(end)) for end in (0, np.inf)]
    positive = np.concatenate([halves.astype(np.float32), ties, *near])
    values = np.concatenate([positive, -positive])
    patterns = np.arange(1 << 16, dtype=np.uint16)
    monkeypatch.setattr(dtypes, "_kernels", None)
    monkeypatch.setattr(dtypes, "_is_loaded", False)
    monkeypatch.setattr(dtypes, "_numpy_seconds", 0.0)
    monkeypatch.setattr(dtypes, "_LOADING", 3e-3)
    loaded = []
    for _ in range(3):
        with np.errstate(all="ignore"):
            expected = values.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(rounded(values), expected)
        out = np.empty(len(patterns), np.float32)
        widen(patterns, out)
        np.testing.assert_array_equal(out, patterns.view(np.float16).astype(np.float32))
        loaded.append(dtypes._kernels is not None)
    assert loaded == [False, kernels is not None, kernels is not None]
