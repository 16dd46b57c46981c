"""The comparison of an artifact's outputs with its reference's, without any artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pytest_ane.errors import ExecutionError
from pytest_ane.fidelity import Case, Comparison, Fidelity, measure

X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


class FakeRunner:
    """Gives the same outputs whatever comes in, and keeps what came."""

    inputs = ()

    def __init__(self, **outputs: np.ndarray) -> None:
        self.outputs = outputs
        self.seen: list[Mapping[str, np.ndarray]] = []
        self.calls: list[int] = []

    def make_state(self) -> list[int]:
        """A state that counts its calls."""
        return []

    def predict(
        self, inputs: Mapping[str, np.ndarray], state: list[int] | None = None
    ) -> dict[str, np.ndarray]:
        assert state is not None
        state.append(len(self.seen))
        self.seen.append(inputs)
        self.calls.append(len(state))
        return self.outputs

    def predict_all(
        self, inputs: Sequence[Mapping[str, np.ndarray]], states: Sequence[list[int]]
    ) -> list[dict[str, np.ndarray]]:
        return [self.predict(x, state) for x, state in zip(inputs, states, strict=True)]


def case(expected: Mapping[str, np.ndarray], name: str = "probe") -> Case:
    return Case("gaussian", name, ({"x": X},), lambda outputs: outputs, expected, len(X), 6.0)


def compare(actual: np.ndarray, expected: np.ndarray) -> Comparison:
    """The one comparison of one output."""
    found = measure(FakeRunner(y=actual), [case({"y": expected})], compared=True, provenance={})
    (comparison,) = found.comparisons
    return comparison


def test_equal_outputs() -> None:
    found = compare(X, X)
    assert (found.kind, found.probe, found.output) == ("gaussian", "probe", "y")
    assert (found.length, found.input_max) == (3, 6.0)
    assert found.cosines == pytest.approx((1, 1, 1))
    assert found.positions == (0, 1, 2)
    assert (found.both_zero, found.one_zero) == ((), ())
    assert (found.finite, found.error_max) == (1.0, 0.0)
    assert found.live


def test_several_calls_share_one_state_and_their_rows_follow_one_another() -> None:
    runner = FakeRunner(y=X)
    twice = replace(case({"y": np.concatenate([X, X])}), calls=({"x": X}, {"x": X}))
    (found,) = measure(runner, [twice], compared=True, provenance={}).comparisons
    assert runner.calls == [1, 2]
    assert found.positions == (0, 1, 2, 3, 4, 5)


def test_the_worst_position() -> None:
    found = compare(np.array([[1, 2], [4, -3], [5, 6]], np.float32), X)
    assert found.worst == pytest.approx(0)
    assert found.worst_position == 1
    assert found.error_max == 7.0


def test_zero_on_both_sides_is_agreement_and_not_compared() -> None:
    zeroed = X * np.array([[0], [1], [1]], np.float32)
    found = compare(zeroed, zeroed)
    assert (found.both_zero, found.one_zero, found.positions) == ((0,), (), (1, 2))
    assert found.worst == pytest.approx(1)


@pytest.mark.parametrize("side", [0, 1])
def test_zero_on_one_side_is_kept_apart(side: int) -> None:
    pair = [X, X * np.array([[1], [0], [1]], np.float32)]
    found = compare(pair[side], pair[1 - side])
    assert (found.both_zero, found.one_zero, found.positions) == ((), (1,), (0, 2))


def test_positions_are_those_of_the_prompt() -> None:
    later = replace(case({"y": X}), start=7)
    (found,) = measure(FakeRunner(y=X), [later], compared=True, provenance={}).comparisons
    assert found.positions == (7, 8, 9)


def test_only_captured_probes_have_a_first_position_apart() -> None:
    found = compare(X, X)
    assert (found.first.positions, found.rest.positions) == ((), (0, 1, 2))
    captured = replace(found, kind="captured")
    assert (captured.first.positions, captured.rest.positions) == ((0,), (1, 2))
    assert captured.first.cosines + captured.rest.cosines == captured.cosines


def test_nothing_live() -> None:
    found = compare(X * 0, X * 0)
    assert not found.live
    assert found.both_zero == (0, 1, 2)
    assert math.isnan(found.worst)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_value_that_is_not_finite_is_the_worst(bad: float, position: int) -> None:
    broken = X.copy()
    broken[position, 0] = bad
    found = compare(broken, X)
    assert found.finite == pytest.approx(5 / 6)
    assert math.isnan(found.worst)
    assert found.worst_position == position
    assert not found.error_max <= 1e30


def test_a_reference_that_is_not_finite_agrees_with_nothing() -> None:
    found = compare(X, np.full_like(X, np.nan))
    assert found.finite == 1
    assert math.isnan(found.worst)


def test_a_row_of_nan_is_not_a_row_of_zeros() -> None:
    found = compare(np.array([[np.nan, 0]], np.float32), np.zeros((1, 2), np.float32))
    assert (found.both_zero, found.one_zero) == ((), (0,))


def test_every_output_of_the_reference_is_compared() -> None:
    runner = FakeRunner(y=X, z=X * 2, more=X)
    found = measure(runner, [case({"y": X, "z": X})], compared=True, provenance={"seed": 1})
    assert [c.output for c in found.comparisons] == ["y", "z", "more"]
    assert [c.live for c in found.comparisons] == [True, True, False]
    assert found.provenance == {"seed": 1}
    assert runner.seen == [{"x": X}]


def test_nan_in_an_output_the_reference_lacks_is_seen() -> None:
    runner = FakeRunner(y=X, more=np.full_like(X, np.nan))
    found = measure(runner, [case({"y": X})], compared=True, provenance={})
    assert [c.finite for c in found.comparisons] == [1.0, 0.0]


def test_without_a_reference_outputs_are_held_against_themselves() -> None:
    broken = X.copy()
    broken[0, 0] = np.inf
    found = measure(FakeRunner(y=broken), [case({})], compared=False, provenance={})
    assert not found.compared
    assert [c.finite for c in found.comparisons] == [pytest.approx(5 / 6)]


def test_no_case_is_no_comparison() -> None:
    assert measure(FakeRunner(), [], compared=True, provenance={}) == Fidelity((), True, {})


@pytest.mark.parametrize(
    ("outputs", "given"),
    [({"z": X}, "z [3, 2]"), ({"y": X[:1]}, "y [1, 2]"), ({}, "nothing")],
)
def test_an_output_that_is_missing_or_of_another_shape(
    outputs: dict[str, np.ndarray], given: str
) -> None:
    with pytest.raises(ExecutionError) as error:
        measure(FakeRunner(**outputs), [case({"y": X})], compared=True, provenance={})
    assert str(error.value) == (
        f"probe: the reference gives y [3, 2], the artifact {given}; outputs are compared by name "
        "and must have one shape."
    )
