"""A sequence through one shard's artifact, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pytest_ane.backends import Runner
from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.models.families import Layout, calls_of, feedback_of, first_feedback, recurrent_of


class ShardSequence:
    """A sequence through one shard, from position 0 on; `chain.chain.Rewinding`.

    Going back is an earlier `start` for a key-value cache. Recurrent states are copied with every
    mark, and what is kept runs through this shard again.

    Args:
        limit: the largest T of a call.
    """

    def __init__(self, runner: Runner, layout: Layout, limit: int) -> None:
        self._runner, self._layout, self._limit = runner, layout, limit
        self._state, self._start = runner.make_state(), 0
        self._feedback: dict[str, Array] = dict(first_feedback(layout))
        self._latest: FloatArray | None = None

    def __call__(self, hidden: FloatArray) -> FloatArray:
        """The next positions `[T, C]`, in as many calls as they need."""
        parts, done = [], 0
        for count in calls_of(self._layout, len(hidden), self._limit):
            parts.append(self._call(hidden[done : done + count]))
            done += count
        self._latest = hidden
        return np.concatenate(parts)

    def _call(self, hidden: FloatArray) -> FloatArray:
        inputs = {**self._layout.inputs(hidden, self._start), **self._feedback}
        outputs = self._runner.predict(inputs, self._state)
        for output, name in feedback_of(self._layout).items():
            self._feedback[name] = outputs[output]
        self._start += len(hidden)
        return self._layout.output(outputs)[: len(hidden)]

    def mark(self) -> Mark:
        """Save the current position, with copies of the recurrent states."""
        names = recurrent_of(self._layout)
        states = self._runner.read_states(self._state, names)
        return Mark(self._start, states, dict(self._feedback))

    def back(self, mark: Mark, keep: int = 0) -> None:
        """Restore the state saved by `mark`, keeping the first `keep` positions run since."""
        self._start = mark.start
        self._runner.write_states(self._state, mark.states)
        self._feedback = dict(mark.feedback)
        if keep and (mark.states or mark.feedback):
            assert self._latest is not None
            self(self._latest[:keep])
        else:
            self._start += keep


class Mark(NamedTuple):
    """A position, and the recurrent states and feedback before it by name."""

    start: int
    states: Mapping[str, Any]
    feedback: Mapping[str, Any]
