"""fp16 by its bit patterns, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.build.palettize import patterns

ALL = np.arange(patterns.INFINITE, dtype=np.uint16)


@given(st.floats(-65_000, 65_000))
def test_half_rounds_as_numpy(x: float) -> None:
    assert patterns.half(x) == float(np.float16(x))


def test_half_rounds_ties_to_even() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    for tie in ((values[1:] + values[:-1]) / 2)[::17]:
        assert patterns.half(tie) == float(np.float16(tie))


def test_number_knows_every_pattern() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    assert [patterns.number(int(key)) for key in ALL] == values.tolist()
    assert [patterns.number(-int(key)) for key in ALL[::13]] == (-values[::13]).tolist()


@pytest.mark.parametrize(
    ("weights", "most"),
    [([0.0, -0.0], 0), ([1.0, -2.0], 0x4000), ([np.inf], 0x7C00), ([-np.inf, 1], 0x7C00)],
)
def test_largest(weights: list[float], most: int) -> None:
    assert patterns.largest(np.array(weights, np.float16).view(np.uint16)) == most


def test_a_nan_is_larger_than_all() -> None:
    nan = np.array([1.0, np.nan], np.float16).view(np.uint16)
    assert patterns.largest(nan) > patterns.INFINITE


@given(st.sampled_from([1, 2, 3, 4, 6]), st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_packing_is_a_stream_of_bits(nbits: int, numbers: list[int]) -> None:
    indices = np.array(numbers, np.uint8) & ((1 << nbits) - 1)
    packed = np.empty(-(-len(indices) * nbits // 8), np.uint8)
    patterns.pack(indices, nbits, packed)
    bits = np.unpackbits(indices[:, None], axis=1, bitorder="little")[:, :nbits]
    assert packed.tolist() == np.packbits(bits.reshape(-1), bitorder="little").tolist()


def test_where_no_folder_takes_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that cannot be written, and no home folder either."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert patterns.compiled(lambda x: x + 1)(1) == 2
