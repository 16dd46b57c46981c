"""Rotary tables and masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families._layout import (
    AneLayout,
    attention_ports,
    causal_mask,
    write_mask,
)
from tests.models.families.rotary import plain_rotary


def test_rotary_tables_of_two_positions_and_two_pairs() -> None:
    """Pair 0 turns by 1 a position, pair 1 by 100^(-2/4) = 0.1; halves are alike."""
    cos, sin = plain_rotary(4, 100.0).tables(2)
    np.testing.assert_allclose(cos, [[1, 1, 1, 1], [math.cos(1), math.cos(0.1)] * 2], rtol=1e-6)
    np.testing.assert_allclose(sin, [[0, 0, 0, 0], [math.sin(1), math.sin(0.1)] * 2], rtol=1e-6)
    assert cos.dtype == sin.dtype == np.float32


@given(st.integers(1, 40), st.integers(1, 16), st.floats(10, 1e6))
def test_rotary_tables_lie_on_the_unit_circle(length: int, pairs: int, theta: float) -> None:
    cos, sin = plain_rotary(2 * pairs, theta).tables(length)
    assert cos.shape == sin.shape == (length, 2 * pairs)
    np.testing.assert_allclose(cos**2 + sin**2, 1, atol=1e-6)
    np.testing.assert_array_equal(cos[:, :pairs], cos[:, pairs:])


def test_the_mask_forbids_later_keys() -> None:
    assert causal_mask(3).tolist() == [[0, -1e4, -1e4], [0, 0, -1e4], [0, 0, 0]]
    assert causal_mask(1).tolist() == [[0]]


def test_the_mask_of_a_later_call_shows_all_keys_before() -> None:
    assert causal_mask(2, 1, 4).tolist() == [[0, 0, -1e4, -1e4], [0, 0, 0, -1e4]]


def test_each_position_is_written_to_its_own_column() -> None:
    assert write_mask(2, 1, 4)[0, 0].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_a_ring_holds_the_last_positions() -> None:
    """After position 5, the columns of a ring of 4 hold the positions 4, 5, 2, 3."""
    assert write_mask(2, 4, 4)[0, 0].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    hidden = [[0, -1e4, -1e4, 0], [0, 0, -1e4, -1e4]]
    assert causal_mask(2, 4, 4, 2, ring=True).tolist() == hidden
    assert causal_mask(2, 4, 4, 2, first=5, ring=True).tolist() == [
        [-1e4] * 4,
        [-1e4, 0, -1e4, -1e4],
    ]


def test_what_a_ring_does_not_hold_yet_is_hidden() -> None:
    assert causal_mask(1, 1, 4, 3, ring=True).tolist() == [[0, 0, -1e4, -1e4]]


@given(st.integers(1, 9), st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_a_ring_shows_each_query_its_window(window: int, most: int, lengths: list[int]) -> None:
    """Whatever calls come one after another, what is shown is what was written last there."""
    layout = AneLayout("f", 1, None, window - 1 + most, window, attends=True, ring=True)
    written: dict[int, int] = {}
    start = 0
    for length in (min(length, most) for length in lengths):
        inputs = layout.inputs(np.zeros((length, 1), np.float32), start)
        for t, columns in enumerate(inputs["write"][0, 0]):
            written[int(columns.argmax())] = start + t
        for t, columns in enumerate(inputs["mask"][0, 0]):
            seen = sorted(written[int(slot)] for slot in np.flatnonzero(columns == 0))
            assert seen == list(range(max(0, start + t - window + 1), start + t + 1))
        start += length


def test_a_call_that_a_ring_does_not_hold() -> None:
    layout = AneLayout("f", 1, None, 6, 4, attends=True, ring=True)
    with pytest.raises(ExecutionError, match="a call of 4 positions does not fit a ring of 6 besi"):
        layout.inputs(np.zeros((4, 1), np.float32))


def test_without_angles_there_are_masks_alone() -> None:
    layout = AneLayout("f", 1, None, 4, attends=True)
    assert list(layout.inputs(np.zeros((1, 1), np.float32))) == ["x", "mask", "write"]
    assert layout.sees == "state"
    assert [port.name for port in attention_ports(1, 0, 4)] == ["x", "mask", "write"]
