"""Sums of an operation's costs."""

from __future__ import annotations

import math

import pytest

from pytest_ane.analysis.costs import Costs, OpCost

CONV = OpCost("y", "conv", macs=96, width=3, weights=40, reads=8, writes=12)
WRITE = OpCost("write_state", "write_state", states=64)
COSTS = Costs(tokens=3, operations=(CONV, WRITE), inputs=6, outputs=10, held=64)


def test_sums() -> None:
    assert (COSTS.macs, COSTS.weights, COSTS.activations, COSTS.states) == (96, 40, 20, 64)


def test_between_operations_nothing_has_to_leave_the_chip() -> None:
    assert COSTS.streamed == 40 + 64 + 6 + 10
    assert COSTS.intensity == 2 * 96 / 120


def test_without_bytes_intensity_is_infinite() -> None:
    assert Costs(1, (), 0, 0, 0).intensity == math.inf


@pytest.mark.parametrize(("lanes", "macs"), [(1, 96), (2, 128), (3, 96), (4, 128), (32, 1024)])
def test_the_last_axis_is_filled_up(lanes: int, macs: int) -> None:
    assert CONV.filled(lanes) == macs
    assert COSTS.filled(lanes) == macs
