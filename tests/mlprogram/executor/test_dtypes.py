"""The numeric policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor import dtypes
from pytest_ane.mlprogram.executor.dtypes import (
    Precision,
    converter,
    rounded,
    widen,
)
from pytest_ane.mlprogram.records import DType, TensorType


def converted(x: Any, dtype: DType, precision: Precision, moves: bool) -> Any:
    with np.errstate(all="ignore"):
        return converter(TensorType(dtype), precision, moves)(x)


def test_converters() -> None:
    x = np.array([2049.0, 1e5], np.float32)
    assert converted(x, DType.FP16, "as-typed", False).tolist() == [2048, np.inf]
    assert converted(x, DType.FP32, "as-typed", False).tolist() == [2049, 1e5]
    assert converted(x, DType.FP16, "float32", False).tolist() == [2049, 1e5]
    x = np.array([2048.0], np.float32)
    assert converted(x, DType.FP16, "as-typed", True) is x
    assert converted(np.array([1.9, -1.9]), DType.INT32, "as-typed", False).tolist() == [1, -1]


def test_numpy_rounds_and_widens_until_loading_the_kernels_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both give the same bits: every fp16 number, ties, their neighbours, and random ones."""
    kernels = dtypes.load_kernels()
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    near = [np.nextafter(ties, np.float32(end)) for end in (0, np.inf)]
    positive = np.concatenate([halves.astype(np.float32), ties, *near])
    random = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    values = np.concatenate([positive, -positive, random.view(np.float32)])
    patterns = np.arange(1 << 16, dtype=np.uint16)
    monkeypatch.setattr(dtypes, "_kernels", None)
    monkeypatch.setattr(dtypes, "_is_loaded", False)
    monkeypatch.setattr(dtypes, "_numpy_seconds", 0.0)
    monkeypatch.setattr(dtypes, "_LOADING", 3e-3)
    loaded = []
    for _ in range(3):
        with np.errstate(all="ignore"):
            expected = values.astype(np.float16).astype(np.float32)
            found = rounded(values)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
        out = np.empty(len(patterns), np.float32)
        widen(patterns, out)
        np.testing.assert_array_equal(out, patterns.view(np.float16).astype(np.float32))
        loaded.append(dtypes._kernels is not None)
    assert loaded == [False, kernels is not None, kernels is not None]
