"""What running a program may take: memory, time, and turns of its loops.

Each operation's result is measured before it is computed, by `sizes.result_elements`, and added to
what the program's values hold at that moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.mlprogram.errors import BudgetError
from pytest_ane.mlprogram.executor.ops.lists import TensorList
from pytest_ane.mlprogram.executor.sizes import USUAL_WORDS, WORDS, result_elements
from pytest_ane.mlprogram.executor.state import State
from pytest_ane.mlprogram.memory import bytes_text, free_memory

SECONDS = 600.0
"""Time of one call of a program by default."""
_PER_ARRAY = 4096
"""Bytes that an array takes besides its elements: large ones begin a page of memory."""
MOST_TURNS = 1_000_000
"""Turns that the loops of one call may take together."""


@dataclass(frozen=True)
class Budget:
    """Limits of one call of a program.

    Attributes:
        memory: bytes that its values may take together; None for half of what is free.
        seconds: how long it may take.
        turns: how many turns its loops may take together.
    """

    memory: int | None = None
    seconds: float = SECONDS
    turns: int = MOST_TURNS

    def settled(self) -> Budget:
        """The same, with a number of bytes."""
        if self.memory is not None:
            return self
        return Budget(free_memory() // 2, self.seconds, self.turns)

    def check_tensor(
        self, what: str, shape: Iterable[int], itemsize: int = 4, words: int = 1
    ) -> None:
        """Refuse a tensor that is about to be made, such as an input or a state.

        Args:
            what: file, kind and name of the tensor, for messages.
            shape: its own.
            itemsize: bytes of an element.
            words: elements that are held for each one while it is made.

        Raises:
            BudgetError: making it takes more than the memory allowed.
        """
        size = itemsize * math.prod(shape)
        memory = self.settled().memory or 0
        if size * words > memory:
            raise _memory_error(what, size, words, memory)


_budget = Budget()


@contextmanager
def process_budget(memory: int | None = None, seconds: float | None = None) -> Iterator[None]:
    """Set the budget of all sessions that are opened meanwhile without one of their own."""
    global _budget
    before, _budget = _budget, Budget(memory, SECONDS if seconds is None else seconds)
    try:
        yield
    finally:
        _budget = before


def current_budget() -> Budget:
    """The budget of this process, with a number of bytes."""
    return _budget.settled()


class Meter:
    """What one call takes, held against a budget.

    Args:
        budget: one that is settled.
        values: yields the values that the program holds at the moment.
        calls: inputs that are run at once; each of them has the budget's time.
    """

    def __init__(self, budget: Budget, values: Callable[[], Iterable[Any]], calls: int = 1) -> None:
        self._budget, self._values = budget, values
        self._memory = budget.memory or 0
        self._end = time.monotonic() + budget.seconds * calls
        self._turns = self._most = budget.turns * calls
        self._held = held_bytes(values())

    def admit(self, what: str, op: str, parameters: Mapping[str, Any], itemsize: int) -> None:
        """Hold an operation against the budget before it is computed.

        Args:
            what: file, kind and name of the operation, for messages.
            op: its kind.
            parameters: all of them by MIL's names.
            itemsize: bytes of an element of its results.

        Raises:
            BudgetError: its result, or the time so far, is beyond the budget.
        """
        if time.monotonic() > self._end:
            raise self._time_error(what)
        size = result_elements(op, parameters) * itemsize
        words = WORDS.get(op, USUAL_WORDS)
        if self._held + size * words <= self._memory:
            return
        # Results were added up, whether they are new memory or views, and held still or not.
        self._held = held_bytes(self._values())
        if self._held + size * words > self._memory:
            raise _memory_error(what, size, words, self._memory, self._held)

    def add(self, values: Sequence[Any], outputs: Iterable[tuple[int, Any]]) -> None:
        """Count results that the program holds from now on, in their slots of the values."""
        for slot, _ in outputs:
            self._held += _own_bytes(values[slot])

    def turn(self, what: str) -> None:
        """Count a turn of a loop.

        Raises:
            BudgetError: there have been too many, or the time is over.
        """
        self._turns -= 1
        if self._turns < 0:
            raise BudgetError(
                f"{what} is still running after {self._most:,} turns, the budget of a "
                "call; its condition may never become false."
            )
        if time.monotonic() > self._end:
            raise self._time_error(what)

    def _time_error(self, what: str) -> BudgetError:
        return BudgetError(
            f"{what} is still running after {self._budget.seconds:g} s, the budget of a call; "
            "raise --ane-time."
        )


def held_bytes(values: Iterable[Any]) -> int:
    """Bytes of all memory that values refer to; what several share counts once."""
    owners: dict[int, int] = {}
    pending = list(values)
    for value in pending:  # Grows.
        if isinstance(value, TensorList):
            owners[id(value.elements)] = _own_bytes(value)
            pending += value.elements
        elif isinstance(value, State):
            pending.append(value.read())
        elif isinstance(value, np.ndarray):
            owner = value
            while (value := getattr(value, "base", None)) is not None:
                owner = value if isinstance(value, np.ndarray) else owner
            owners[id(owner)] = _own_bytes(owner)
    return sum(owners.values())


def _own_bytes(value: Any) -> int:
    if isinstance(value, TensorList):
        return 8 * len(value.elements)
    return value.nbytes + _PER_ARRAY if isinstance(value, np.ndarray) else 0


def _memory_error(what: str, size: int, words: int, memory: int, held: int = 0) -> BudgetError:
    """A refusal of a tensor of `size` bytes, of which `words` times as many are needed."""
    needs = ""
    if size <= memory:
        needs = f" needs {bytes_text(size * words)} while it is computed"
        needs += f", beside {bytes_text(held)} of other values" if held else ""
    return BudgetError(
        f"{what} of {bytes_text(size)}{needs}, over the budget of {bytes_text(memory)}; "
        "raise --ane-memory."
    )
