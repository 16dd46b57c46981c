"""The comparison of an artifact's outputs with its reference's, without any artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pytest_ane.gates.fidelity import FIDELITY, Comparison, Fidelity, judge, measure
from pytest_ane.manifest.policy import FidelityPolicy
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.probes.cases import Case

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


def test_overwritten_rows_and_left_out_channels_are_not_compared() -> None:
    """The first call gives rows that the second one writes again; channel 1 is 9 in place of 2."""
    expected = np.array([[1, 2, 5], [3, 4, 6]], np.float32)
    given = np.array([[1, 9, 5], [3, 9, 6]], np.float32)

    class Twice(FakeRunner):
        def predict(self, inputs: Any, state: list[int] | None = None) -> dict[str, np.ndarray]:
            return {"y": -given if "first" in inputs else given}

    calls: Any = ({"first": X}, {"x": X})
    known = replace(case({"y": expected}), calls=calls, kept=(2, 3), left_out=(1,), length=2)
    known = replace(known, residual={"y": np.full_like(expected, 2)})
    (comparison,) = measure(Twice(), [known], compared=True, provenance={}).comparisons
    assert comparison.cosines == comparison.contributions == (1, 1)
    assert (comparison.relative, comparison.error_max, comparison.finite) == ((0, 0), 0, 1)
    given[1, 1] = np.nan
    (comparison,) = measure(Twice(), [known], compared=True, provenance={}).comparisons
    assert (comparison.finite, comparison.spoilt) == (5 / 6, (1,))


def compare(actual: np.ndarray, expected: np.ndarray) -> Comparison:
    """The one comparison of one output."""
    found = measure(FakeRunner(y=actual), [case({"y": expected})], compared=True, provenance={})
    (comparison,) = found.comparisons
    return comparison


@pytest.mark.parametrize(
    ("actual", "expected", "both", "one", "positions"),
    [
        (X, X, (), (), (0, 1, 2)),
        (X * [[0], [1], [1]], X * [[0], [1], [1]], (0,), (), (1, 2)),
        (X, X * [[1], [0], [1]], (), (1,), (0, 2)),
        (X * [[1], [0], [1]], X, (), (1,), (0, 2)),
        (X * 0, X * 0, (0, 1, 2), (), ()),
        # A weight that the float32 reference still has and fp16 has not; NaN is no zero.
        (X * [[0], [1], [1]], np.array([[1e-9, 0], [3, 4], [5, 6]]), (0,), (), (1, 2)),
        (X * [[np.nan], [1], [1]], X * [[0], [1], [1]], (), (0,), (1, 2)),
    ],
)
def test_zero_on_both_sides_is_agreement_and_on_one_is_kept_apart(
    actual: Any, expected: Any, both: Any, one: Any, positions: Any
) -> None:
    found = compare(actual.astype(np.float32), expected.astype(np.float32))
    assert (found.both_zero, found.one_zero, found.positions) == (both, one, positions)
    assert (found.kind, found.probe, found.output, found.input_max) == (
        "gaussian", "probe", "y", 6.0,
    )  # fmt: skip
    assert found.cosines == pytest.approx((1,) * len(positions))
    assert found.live is bool(positions)


def test_positions_are_those_of_the_prompt_and_the_worst_is_found() -> None:
    later = replace(case({"y": X}), start=7)
    (found,) = measure(FakeRunner(y=X), [later], compared=True, provenance={}).comparisons
    assert found.positions == (7, 8, 9)
    found = compare(np.array([[1, 2], [4, -3], [5, 6]], np.float32), X)
    assert found.worst == pytest.approx(0)
    assert np.argmin(found.cosines) == 1
    assert found.error_max == 7.0
    found = compare(X, np.full_like(X, np.nan))
    assert found.finite == 1
    assert math.isnan(found.worst)


def test_only_captured_probes_of_decoders_have_a_first_position_apart() -> None:
    found = compare(X, X)
    assert (found.first.positions, found.rest.positions) == ((), (0, 1, 2))
    captured = replace(found, kind="captured")
    assert (captured.first.positions, captured.rest.positions) == ((0,), (1, 2))
    assert captured.first.cosines + captured.rest.cosines == captured.cosines
    # It sees the whole text, and may be the only one that is pooled.
    probe = replace(case({"y": X}), kind="captured", causal=False)
    (found,) = measure(FakeRunner(y=X), [probe], compared=True, provenance={}).comparisons
    assert (found.first.positions, found.rest.positions) == ((), (0, 1, 2))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_value_that_is_not_finite_is_the_worst(bad: float, position: int) -> None:
    broken = X.copy()
    broken[position, 0] = bad
    found = compare(broken, X)
    assert found.finite == pytest.approx(5 / 6)
    assert math.isnan(found.worst)
    assert np.argmin(found.cosines) == position
    assert not found.error_max <= 1e30


def test_outputs_that_the_reference_lacks_are_seen() -> None:
    runner = FakeRunner(y=X, z=X * 2, more=X)
    found = measure(runner, [case({"y": X, "z": X})], compared=True, provenance={"seed": 1})
    assert [c.output for c in found.comparisons] == ["y", "z", "more"]
    assert [c.live for c in found.comparisons] == [True, True, False]
    assert found.provenance == {"seed": 1}
    assert runner.seen == [{"x": X}]
    runner = FakeRunner(y=X, more=np.full_like(X, np.nan))
    found = measure(runner, [case({"y": X})], compared=True, provenance={})
    assert [c.finite for c in found.comparisons] == [1.0, 0.0]


def test_without_a_reference_or_a_case_nothing_is_compared() -> None:
    broken = X.copy()
    broken[0, 0] = np.inf
    found = measure(FakeRunner(y=broken), [case({})], compared=False, provenance={})
    assert not found.compared
    assert [c.finite for c in found.comparisons] == [pytest.approx(5 / 6)]
    assert measure(FakeRunner(), [], compared=True, provenance={}) == Fidelity(
        (), True, {}, same_module=False
    )


def test_one_hand_of_one_case_is_one_hand() -> None:
    cases = [case({"y": X}), replace(case({"y": X}), same_module=True)]
    for some, same in ((cases[:1], False), (cases, True)):
        found = measure(FakeRunner(y=X), some, compared=True, provenance={})
        assert found.same_module is same
    assert measure(FakeRunner(y=X), cases, compared=False, provenance={}).same_module is None


@pytest.mark.parametrize(
    ("outputs", "given"), [({"z": X}, "z [3, 2]"), ({"y": X[:1]}, "y [1, 2]"), ({}, "nothing")]
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


RNG = np.random.default_rng(6)
WIDE = RNG.standard_normal((3, 64)).astype(np.float32)
ADDED = RNG.standard_normal((3, 64)).astype(np.float32)
WRONG = RNG.standard_normal((3, 64)).astype(np.float32)


def comparison(actual: np.ndarray, expected: np.ndarray, **changes: Any) -> Comparison:
    """The one comparison of a case with more known of it."""
    made = replace(case({"y": expected}), **changes)
    (found,) = measure(FakeRunner(y=actual), [made], compared=True, provenance={}).comparisons
    return found


@pytest.mark.parametrize(
    ("known", "within"),
    [
        ({"residual": {"y": 20 * WIDE}}, 1e-4),
        # Where it is unknown, what lies along the input is.
        ({"calls": ({"mask": WRONG, "x": WIDE, "ids": np.ones((3, 64), np.int32), "s": X},),
          "residual_unknown": True}, 0.02),
    ],
)  # fmt: skip
def test_a_residual_path_is_taken_out(known: dict[str, Any], within: float) -> None:
    path = 20 * WIDE
    found = comparison(path + ADDED + WRONG / 3, path + ADDED, **known)
    alone = compare(ADDED + WRONG / 3, ADDED).cosines
    assert found.contributions == pytest.approx(alone, abs=within)
    assert max(found.contributions) < 0.97 < 0.999 < found.worst
    assert found.contributing == found.positions
    assert found.residual == pytest.approx(20, rel=0.2)
    found = comparison(WIDE + WRONG, WIDE)
    assert (found.contributions, found.idle, found.residual) == ((), (), None)


def test_positions_that_add_nothing_on_either_side_have_no_contribution() -> None:
    some = ADDED * np.array([[1], [0], [1]], np.float32)
    found = comparison(WIDE + some, WIDE + some, residual={"y": WIDE}, start=4)
    assert (found.positions, found.idle, found.contributing) == ((4, 5, 6), (5,), (4, 6))
    assert found.contributions == pytest.approx((1, 1))
    nothing = comparison(WIDE, WIDE, residual={"y": WIDE})
    assert (nothing.contributions, nothing.idle, nothing.residual) == ((), (0, 1, 2), None)


def test_a_shard_that_returns_its_input_fails_though_its_cosine_is_high() -> None:
    path = 20 * WIDE
    found = comparison(path, path + ADDED, residual={"y": path}, start=4)
    assert (found.one_adds, found.worst > 0.99) == ((4, 5, 6), True)
    verdict = judge(Fidelity((found,), True, {}), FidelityPolicy(), "L01")
    assert "add to the residual path on one side only" in [f.kind for f in verdict.reasons]


def test_beside_extreme_inputs_what_is_added_is_lost_in_rounding() -> None:
    """An exact shard in fp16, its input 3,000 times what it adds, would show 0.7."""
    path = (3000 * WIDE).astype(np.float16).astype(np.float32)
    rounded = (path + ADDED).astype(np.float16).astype(np.float32)
    shown = comparison(rounded, path + ADDED, residual={"y": path}).contributions
    assert min(shown) < 0.9
    found = comparison(rounded, path + ADDED, residual={"y": path}, kind="extreme")
    assert (found.contributions, found.residual, found.live) == ((), None, True)


def test_the_experts_of_positions_that_are_zero_on_one_side_are_kept() -> None:
    zeroed = X * np.array([[1], [0], [0]], np.float32)
    found = comparison(zeroed, X, routed=((1,), (4, 9), ()), start=2)
    assert (found.one_zero, found.experts) == ((3, 4), ((4, 9), ()))
    assert comparison(X, X, routed=((1,), (4, 9), ())).experts == ()


def test_a_position_at_which_rounding_chooses_is_not_compared_but_counted() -> None:
    wrong = X * np.array([[1], [-1], [0]], np.float32)
    found = comparison(wrong, X, undecided=(1, 2), start=2)
    assert (found.undecided, found.positions, found.both_zero) == ((3, 4), (2,), ())
    assert (found.worst, found.one_zero) == (1.0, ())
    figures = {f.name: f.value for f in FIDELITY.figures(Fidelity((found,), True, {}))}
    assert figures["positions.undecided"] == 2
    spoilt = comparison(wrong * np.nan, X, undecided=(0, 1, 2))
    assert (spoilt.finite, spoilt.spoilt) == (0, (0, 1, 2))


def test_where_the_reference_itself_is_nan_nothing_is_proven() -> None:
    """Inputs that a model does not take, such as a magnitude below zero, are no fault of its."""
    undefined = X * np.array([[1], [np.nan], [1]], np.float32)
    found = comparison(undefined, undefined)
    assert (found.undefined, found.live) == (pytest.approx(1 / 3), False)
    verdict = judge(Fidelity((found,), True, {}), FidelityPolicy(), "m:L01")
    assert verdict.status == "unproven"
    assert "of the reference's own y is NaN or infinite" in verdict.findings[0].reason
    both = Fidelity((found, comparison(X, X)), True, {})
    assert judge(both, FidelityPolicy(), "m:L01").status == "unproven"
    wrong = Fidelity((found, comparison(-X, X)), True, {})
    assert judge(wrong, FidelityPolicy(), "m:L01").status == "failed"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contributions": (0.5,)}, "1 contributions at 3 positions"),
        ({"contributions": (0.5, 2.0, 0.1)}, "neither in -1..1 nor NaN"),
        ({"idle": (7,)}, "do not ascend"),
        ({"relative": (0.5,)}, "1 errors at 3 positions"),
        ({"relative": (0.5, -0.1, 0.0)}, "is negative"),
        ({"residual": -1.0}, "is negative"),
        ({"spoilt": (2, 1)}, "do not ascend"),
        ({"experts": ((1,),)}, "1 experts at 0 positions"),
    ],
)
def test_numbers_that_contradict_one_another(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(compare(X, X), **changes)
