"""Logits of vocabulary slices side by side."""

from __future__ import annotations

import numpy as np

from pytest_ane.families import concatenate


def test_slices_side_by_side() -> None:
    left, right = np.array([[1, 2], [5, 6]], np.float32), np.array([[3], [7]], np.float32)
    assert concatenate([left, right]).tolist() == [[1, 2, 3], [5, 6, 7]]
