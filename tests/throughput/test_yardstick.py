"""The machine's yardstick, by a clock that is wound by hand."""

from __future__ import annotations

import time

from pytest_ane.throughput.yardstick import Yardstick


def test_it_is_the_median_of_what_goes_before_and_after() -> None:
    took = [1.0] * 5 + [3.0] * 5
    moments = iter([moment for seconds in took for moment in (0.0, seconds)])
    left: list[int] = []
    beside = Yardstick().around(
        lambda: left.append(moments.__length_hint__()), lambda: next(moments)
    )
    assert (beside, left) == (2.0, [10])


def test_it_takes_time() -> None:
    assert Yardstick().around(lambda: None, time.process_time) > 0
