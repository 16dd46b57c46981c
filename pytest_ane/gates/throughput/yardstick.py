"""How fast the machine is just now: a little work of numpy's that no change of ours can touch.

Half of it is small operations, which a neighbour on the same core slows most, half a product that
comes from memory: about as the executor's time is divided in decoding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeAlias

import numpy as np

from pytest_ane.chain.decode import Timer

_READINGS, _BETWEEN = 5, 0.05
"""Of a look whether it is calm; seconds between two while something is timed."""
_CALM = 1.15
"""How much longer than its least it may take where nothing disturbs the machine."""
_AT_ONCE, _ROOM, _PAUSE = 2.0, 60.0, 0.1
"""Seconds that are waited for calm at once, in all, and between two looks."""
_SMALL = 1600
"""Products of 64 numbers: about a millisecond."""
_SHAPE = (4096, 1536)
"""Of a float32 matrix, 25 MB: more than most caches hold, and about a millisecond of memory."""

Timing: TypeAlias = Callable[[Callable[[], None]], object]


class Yardstick:
    """Work that is timed beside benchmarks, by the same clock."""

    def __init__(self) -> None:
        self._numbers = np.full(64, 0.5, np.float32)
        self._matrix = np.ones(_SHAPE, np.float32)
        self._vector = np.ones(_SHAPE[1], np.float32)
        self._least: dict[Timer, float] = {}
        self._waited = 0.0

    def around(
        self, timing: Timing, timer: Timer = time.process_time, *, calm: bool = False
    ) -> float:
        """Time something; median seconds of the work, done before, between rounds, and after it.

        Args:
            timing: what is timed; it calls what it is given before every round.
            timer: seconds so far.
            calm: wait until the machine is as fast as it was, as long as there is time for it.
        """
        if calm:
            self._wait(timer)
        readings = [self._once(timer)]
        latest = time.monotonic()

        def look() -> None:
            nonlocal latest
            if time.monotonic() - latest > _BETWEEN:
                readings.append(self._once(timer))
                latest = time.monotonic()

        timing(look)
        readings.append(self._once(timer))
        seconds = median(readings)
        self._least[timer] = min(seconds, self._least.get(timer, seconds))
        return seconds

    def _wait(self, timer: Timer) -> None:
        if self._waited >= _ROOM:
            return
        if timer not in self._least:
            self._least[timer] = min(self._after(_PAUSE, timer) for _ in range(_READINGS))
        start = time.monotonic()
        room = min(_AT_ONCE, _ROOM - self._waited)
        while median(self._read(timer)) > _CALM * self._least[timer]:
            if time.monotonic() - start > room:
                break
            time.sleep(_PAUSE)
        self._waited += time.monotonic() - start

    def _after(self, pause: float, timer: Timer) -> float:
        time.sleep(pause)
        return median(self._read(timer))

    def _read(self, timer: Timer) -> list[float]:
        return [self._once(timer) for _ in range(_READINGS)]

    def _once(self, timer: Timer) -> float:
        start = timer()
        for _ in range(_SMALL):
            np.multiply(self._numbers, self._numbers)
        np.dot(self._matrix, self._vector)
        return timer() - start
