"""Both ways of decoding, side by side."""

from __future__ import annotations

import pytest

from pytest_ane.chain.decode import Decoded
from pytest_ane.core.errors import ExecutionError
from pytest_ane.gates.throughput.counters import Speculated
from pytest_ane.gates.throughput.trial import Trial, run_trial
from tests.chain.test_chain import COUNTING
from tests.gates.throughput.toys import Call, chaotic

PLAIN = Decoded((1, 2, 3, 4), ({"host": 0.1}, {"host": 0.1}, {"host": 0.4}), 1.0)


def test_one_prompt_both_ways() -> None:
    calls: list[Call] = []
    told: list[str] = []
    found = run_trial(chaotic(calls=calls), [1, 2, 1, 2], 6, 3, 0.0, told.append)
    assert told == ["plain decoding", "calls of width 3", "decoding with drafts"]
    assert found.differs is None
    assert len(found.plain.steps) == 5
    assert calls[:6] == [(0, 4), *((4 + i, 1) for i in range(5))]
    assert calls[6:15] == [(3 * i, 3) for i in range(9)]
    assert found.tok_s == 5 / found.found.seconds


def test_all_three_are_timed_by_the_clock_that_is_given() -> None:
    """One that goes on by a second whenever it is read: once around a call, more around shards."""
    ticks = iter(range(10**6))
    found = run_trial(chaotic(), [1, 2, 1, 2], 6, 3, timer=lambda: float(next(ticks)))
    assert set(found.plain.seconds) == {7.0}
    assert set(found.calls) == {1.0}
    spent = [*found.found.calls, *found.found.steps, *found.found.replays]
    assert all(1 <= seconds == int(seconds) for seconds in spent)


def test_speed_and_prediction() -> None:
    """Two calls of 0.2 s, one accepted draft: 3 tokens in 0.4 s; a median step takes 0.1 s."""
    spent = Speculated([1, 2, 3, 4], calls=[0.2, 0.2], drafted=6, accepted=1)
    found = Trial(PLAIN, (0.2, 0.2, 0.9), spent, 4)
    assert (found.cost.t1, found.cost.tv) == pytest.approx((0.1, 0.2))
    assert found.tok_s == pytest.approx(7.5)
    assert found.predicted == pytest.approx(7.5)
    assert found.speedup == pytest.approx(0.75)


def test_where_they_differ() -> None:
    assert Trial(PLAIN, (0.2,), Speculated([1, 2, 9, 4], calls=[1.0]), 4).differs == 2


def test_a_chain_that_takes_no_drafts_is_not_run() -> None:
    with pytest.raises(ExecutionError, match="Shards without states"):
        run_trial(COUNTING, [1], 3, 4)
