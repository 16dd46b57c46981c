"""Paddings and positions of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.ops.spatial import extent, ints, padding, steps


def test_padding() -> None:
    def pads(kind: str, pad: Any = None) -> list[tuple[int, int]]:
        return padding(kind, pad, (5,), (4,), (1,), (1,))

    assert pads("valid") == [(0, 0)]
    assert pads("same") == [(1, 2)]
    assert pads("same_lower") == [(2, 1)]
    assert pads("custom", np.array([3, 4])) == [(3, 4)]
    assert pads("custom") == [(0, 0)]
    with pytest.raises(ValueError, match="unknown pad_type 'full'"):
        pads("full")
    with pytest.raises(ValueError, match=r"2 integers are needed, not \[1\]"):
        pads("custom", [1])


def test_same_padding_counts_strides_and_dilations() -> None:
    assert padding("same", None, (5, 6), (3, 3), (2, 4), (1, 2)) == [(1, 1), (1, 2)]
    assert padding("same", None, (7,), (1,), (3,), (1,)) == [(0, 0)]


def test_ints() -> None:
    assert ints(None, 2, 1) == (1, 1)
    assert ints(np.array([2, 3], np.int32), 2, 1) == (2, 3)
    assert ints(4, 1, 1) == (4,)


def test_positions() -> None:
    assert extent(3, 2) == 5
    assert list(range(20))[steps(1, 3, 4)] == [1, 4, 7, 10]
    assert list(range(5))[steps(4, 3, 1)] == [4]
