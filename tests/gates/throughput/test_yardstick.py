"""The machine's yardstick, by a clock that is wound by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_ane.gates.throughput import yardstick
from pytest_ane.gates.throughput.yardstick import Yardstick


@pytest.fixture(autouse=True)
def _little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "_SMALL", 1)
    monkeypatch.setattr(yardstick, "_SHAPE", (1, 1))


class Clock:
    """The timer of readings that take so long, one after the other."""

    def __init__(self, *took: float) -> None:
        self._moments = iter([moment for seconds in took for moment in (0.0, seconds)])

    def __call__(self) -> float:
        return next(self._moments)

    @property
    def left(self) -> int:
        return self._moments.__length_hint__() // 2


def test_it_is_read_before_and_after() -> None:
    clock, left = Clock(1.0, 4.0), list[int]()
    assert Yardstick().around(lambda look: left.append(clock.left), clock) == 2.5
    assert (left, clock.left) == ([1], 0)


def test_it_is_read_between_rounds_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.01, 0.06, 0.06, 0.07])
    monkeypatch.setattr(yardstick.time, "monotonic", lambda: next(moments))
    clock = Clock(1.0, 2.0, 7.0)

    def rounds(look: Callable[[], None]) -> None:
        for _ in range(3):
            look()

    assert Yardstick().around(rounds, clock) == 2.0
    assert clock.left == 0


def test_it_waits_for_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five looks at what is least, of five readings each; then one that is busy, and a calm one."""
    slept: list[float] = []
    monkeypatch.setattr(yardstick.time, "sleep", slept.append)
    clock = Clock(*[1.0] * 25, *[1.2] * 5, *[1.1] * 5, 1.0, 1.0)
    assert Yardstick().around(lambda look: None, clock, calm=True) == 1.0
    assert len(slept) == 6
    assert clock.left == 0


def test_it_waits_no_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(yardstick.time, "sleep", sleep)
    monkeypatch.setattr(yardstick.time, "monotonic", lambda: now[0])
    clock, one = Clock(*[1.0] * 25, *[2.0] * 10_000), Yardstick()
    for _ in range(100):
        one.around(lambda look: None, clock, calm=True)
    assert 60 < now[0] < 63


def test_it_takes_time() -> None:
    assert Yardstick().around(lambda look: None) > 0
