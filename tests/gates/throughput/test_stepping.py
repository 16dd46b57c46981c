"""Decoding a token at a call gives what decoding at once gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.decode import HOST, Stepper, decode
from pytest_ane.core.errors import ExecutionError
from tests.chain.test_chain import COUNTING, embed, following, head
from tests.chain.test_decode import noted


def test_a_token_at_every_call() -> None:
    step = Stepper(COUNTING, [4], 4)
    assert step.tokens == [5]
    step()
    step()
    assert step.tokens == [5, 6, 0]
    assert len(step.steps) == 2


@pytest.mark.parametrize(("sees", "lengths"), [("state", [3, 1, 1]), ("call", [3, 4, 5])])
def test_states_take_each_token_once_and_calls_the_whole_text(
    sees: str, lengths: list[int]
) -> None:
    given: list[int] = []
    chain = Chain(embed, (noted(given, sees=sees), head("head.0", following)))
    step = Stepper(chain, [1, 2, 3], 3)
    step()
    step()
    assert given == lengths


def test_the_profile_is_of_the_last_steps() -> None:
    step = Stepper(Chain(embed, (noted([]), head("head.0", following))), [1], 5)
    step.steps = [{"block": 9.0, HOST: 1.0}, {"block": 2.0, HOST: 0.5}, {"block": 4.0, HOST: 0.7}]
    assert step.profile(2) == {"block": 3.0, HOST: 0.6}


def test_what_does_not_fit() -> None:
    chain = Chain(embed, (noted([]), head("head.0", following)), positions=4)
    Stepper(chain, [1, 2], 3)
    with pytest.raises(ExecutionError, match="do not fit the 4 positions"):
        Stepper(chain, [1, 2], 4)


@settings(max_examples=15)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(1, 6))
def test_the_same_tokens_as_at_once(ids: list[int], count: int) -> None:
    step = Stepper(COUNTING, ids, count)
    for _ in range(count - 1):
        step()
    assert tuple(step.tokens) == decode(COUNTING, ids, count).tokens
