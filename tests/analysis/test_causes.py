"""Whether one shard breaks a stack, or all wear it down."""

from __future__ import annotations

import math

import pytest

from pytest_ane.analysis.causes import Causes, find_causes
from pytest_ane.analysis.drift import measure_drift
from pytest_ane.manifest import BehaviourPolicy
from tests.gates.behaviour.toys import POLICY, golden, states_of, toy

EXACT = toy(9)
GOLDEN = golden(EXACT)


def causes(base: float = 1e-4, policy: BehaviourPolicy = POLICY, **errors: float) -> Causes:
    chain = toy(9, {name.replace("_", "."): error for name, error in errors.items()}, base)
    found = measure_drift(chain, EXACT, GOLDEN, states_of(EXACT, GOLDEN), {})
    return find_causes(found, policy, "toy")


@pytest.mark.parametrize("guilty", [*(f"L{i:02d}" for i in range(9)), "head_0", "head_1"])
def test_the_one_that_breaks_it(guilty: str) -> None:
    found = causes(**{guilty: 2.0})
    assert found.stack.status == "failed"
    assert found.breaking == (guilty.replace("_", "."),)
    assert found.parts[0].share > 0.99
    assert found.half == 1


def test_the_two_that_break_it() -> None:
    assert set(causes(L02=2.0, L07=2.0).breaking) == {"L02", "L07"}


def test_a_nan_is_worse_than_any_number() -> None:
    found = causes(L02=2.0, L06=math.nan)
    assert found.parts[0].shard == "L06"
    assert set(found.breaking) == {"L02", "L06"}


def test_all_wear_it_down() -> None:
    """No shard alone has as much KL as is allowed; together they have more."""
    lenient = BehaviourPolicy(min_top1=0, max_kl=0.005, min_centred_cosine=-1, min_greedy=0)
    found = causes(base=0.03, policy=lenient)
    assert found.stack.status == "failed"
    assert found.breaking == ()
    assert found.half > 1
    assert sum(part.share for part in found.parts) == pytest.approx(1)


def test_a_stack_that_holds() -> None:
    found = causes()
    assert (found.stack.status, found.reference.status) == ("passed", "passed")
    assert found.breaking == ()
