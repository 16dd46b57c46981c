"""What the bench says where it did not measure; the rest is tested with the command."""

from __future__ import annotations

import math

import pytest

from pytest_ane.recommend.evaluate import filled, lowest
from tests.recommend.simulated import unit


def test_what_was_not_measured_is_like_the_same_weights_elsewhere() -> None:
    q0, q1, q2 = (unit(shard, "q") for shard in ("L00", "L01", "L02"))
    o2 = unit("L02", "o")
    assert filled([q0, q1, q2, o2], {q0: 1.0, q1: 3.0}) == {q0: 1.0, q1: 3.0, q2: 2.0, o2: 2.0}
    assert filled([q0, o2], {q0: 1.0, o2: 5.0}) == {q0: 1.0, o2: 5.0}
    assert filled([q0, o2], {}) == {}
    assert filled([q0, o2, q2], {q2: 1.0, o2: 5.0})[q0] == 1.0


@pytest.mark.parametrize("cosines", [[None, 0.98], [0.98, None], [None], []])
def test_an_undefined_cosine_is_the_lowest(cosines: list[float | None]) -> None:
    """Python's `min` of 0.98 and NaN is 0.98."""
    assert math.isnan(lowest(cosines))
    assert lowest([0.99, 0.98]) == 0.98
