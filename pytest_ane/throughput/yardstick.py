"""How fast the machine is just now: a little work of numpy's that no change of ours can touch.

Half of it is small operations, which a neighbour on the same core slows most, half a product that
comes from memory: about as the executor's time is divided in decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np

_READINGS = 5
_SMALL = 1600
"""Products of 64 numbers: about a millisecond."""
_SHAPE = (4096, 1536)
"""Of a float32 matrix, 25 MB: more than most caches hold, and about a millisecond of memory."""


class Yardstick:
    """Work that is timed beside benchmarks, by the same clock."""

    def __init__(self) -> None:
        self._numbers = np.full(64, 0.5, np.float32)
        self._matrix = np.ones(_SHAPE, np.float32)
        self._vector = np.ones(_SHAPE[1], np.float32)

    def around(self, timing: Callable[[], object], timer: Callable[[], float]) -> float:
        """Time something; median seconds of the work, done before and after it.

        Args:
            timing: what is timed.
            timer: seconds so far.
        """
        before = [self._once(timer) for _ in range(_READINGS)]
        timing()
        return median([*before, *(self._once(timer) for _ in range(_READINGS))])

    def _once(self, timer: Callable[[], float]) -> float:
        start = timer()
        for _ in range(_SMALL):
            np.multiply(self._numbers, self._numbers)
        np.dot(self._matrix, self._vector)
        return timer() - start
