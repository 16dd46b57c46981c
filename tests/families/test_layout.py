"""Rotary tables and masks."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.families.layout import Rotary, causal_mask, write_mask


def test_rotary_tables_of_two_positions_and_two_pairs() -> None:
    """Pair 0 turns by 1 a position, pair 1 by 100^(-2/4) = 0.1; halves are alike."""
    cos, sin = Rotary(4, 100.0).tables(2)
    np.testing.assert_allclose(cos, [[1, 1, 1, 1], [math.cos(1), math.cos(0.1)] * 2], rtol=1e-6)
    np.testing.assert_allclose(sin, [[0, 0, 0, 0], [math.sin(1), math.sin(0.1)] * 2], rtol=1e-6)
    assert cos.dtype == sin.dtype == np.float32


@given(st.integers(1, 40), st.integers(1, 16), st.floats(10, 1e6))
def test_rotary_tables_lie_on_the_unit_circle(length: int, pairs: int, theta: float) -> None:
    cos, sin = Rotary(2 * pairs, theta).tables(length)
    assert cos.shape == sin.shape == (length, 2 * pairs)
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-6)
    np.testing.assert_array_equal(cos[:, :pairs], cos[:, pairs:])


def test_a_longer_table_begins_with_the_shorter_one() -> None:
    np.testing.assert_array_equal(Rotary(8, 1e5).tables(7)[0], Rotary(8, 1e5).tables(64)[0][:7])


def test_the_mask_forbids_later_keys() -> None:
    assert causal_mask(3).tolist() == [[0, -1e4, -1e4], [0, 0, -1e4], [0, 0, 0]]
    assert causal_mask(1).tolist() == [[0]]


def test_the_mask_of_a_later_call_shows_all_keys_before() -> None:
    assert causal_mask(2, 1, 4).tolist() == [[0, 0, -1e4, -1e4], [0, 0, 0, -1e4]]


def test_each_position_is_written_to_its_own_column() -> None:
    assert write_mask(2, 1, 4)[0, 0].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_the_mask_is_finite_in_fp16() -> None:
    assert np.isfinite(causal_mask(4).astype(np.float16)).all()
