"""Which widths a chain takes, and how calls of one are timed."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import ExecutionError
from pytest_ane.gates.throughput.width import check_width, time_calls
from tests.chain.test_chain import COUNTING
from tests.gates.throughput.toys import Call, chaotic


def test_a_width_that_fits() -> None:
    check_width(4, 4, goes_on=True)
    check_width(2, None, goes_on=True)


@pytest.mark.parametrize("width", [1, 0, -3])
def test_a_width_without_drafts(width: int) -> None:
    with pytest.raises(ExecutionError, match=f"width {width} takes no draft: .* from 2 on"):
        check_width(width, None, goes_on=True)


def test_a_width_that_the_shards_do_not_take() -> None:
    with pytest.raises(ExecutionError, match=r"width 5 does not fit .* take 1 to 4 positions"):
        check_width(5, 4, goes_on=True)


def test_a_chain_without_states() -> None:
    with pytest.raises(ExecutionError, match=r"Shards without states .* stateful = true"):
        check_width(2, None, goes_on=COUNTING.goes_on)


def test_calls_of_a_text_over_and_over() -> None:
    calls: list[Call] = []
    found = time_calls(chaotic(calls=calls, positions=10), [1, 2, 3], 4, 5)
    assert calls == [(0, 4), (4, 4), (0, 4), (4, 4), (0, 4), (4, 4)]
    assert len(found) == 5
    assert min(found) > 0
