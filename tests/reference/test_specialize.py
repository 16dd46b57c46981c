"""Operations whose constants are worked out beforehand give what they give otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.reference.registry import lookup, names

RNG = np.random.default_rng(5)


def tensor(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X = tensor(2, 6, 4)
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("add", {"x": X, "y": tensor(4)}, {}),
    ("mul", {"x": X}, {"y": -1.5}),
    ("sub", {"y": X}, {"x": 1.0}),
    ("abs", {"x": X}, {}),
    ("real_div", {"x": X, "y": tensor(1, 6, 1)}, {}),
    ("real_div", {"x": np.int32([-7, 5]), "y": np.int32([2, 0])}, {}),
    ("clip", {"x": np.float32([-3, np.nan, 3, np.inf])}, {"alpha": -1.0, "beta": 2.0}),
    ("conv", {"x": tensor(2, 6, 3, 1)}, {"weight": tensor(5, 6, 1, 1), "bias": tensor(5)}),
    ("conv", {"x": tensor(1, 6, 9)}, {"weight": tensor(5, 6, 1), "strides": np.int32([1])}),
    ("reshape", {"x": X}, {"shape": np.int32([6, -1])}),
    ("transpose", {"x": X}, {"perm": np.int32([2, 0, 1])}),
    ("split", {"x": X}, {"axis": 1, "split_sizes": np.int32([2, 4])}),
    ("slice_by_index", {"x": X}, {"begin": np.int32([0, 1, 0]), "end": np.int32([2, 5, 4]),
                                  "stride": np.int32([1, 2, -1]),
                                  "begin_mask": np.array([False, False, True]),
                                  "end_mask": np.array([False, False, True])}),
    ("slice_update", {"x": X, "update": tensor(2, 6, 4)},
     {"begin": np.int32([0, 0, 0]), "end": np.int32([2, 6, 4])}),
    ("slice_update", {"x": X, "update": tensor(2, 1, 4)},
     {"begin": np.int32([0, 2, 0]), "end": np.int32([2, 3, 4])}),
    ("reduce_mean", {"x": X}, {"axes": np.int32([1, -1]), "keep_dims": True}),
    ("reduce_max", {"x": X}, {}),
    ("reduce_sum", {"x": np.int32([[1, 2], [3, 4]])}, {"axes": np.int32([0])}),
    ("matmul", {"x": X, "y": tensor(2, 6, 4)}, {"transpose_y": True}),
    ("matmul", {"x": tensor(3, 5, 1), "y": tensor(1, 1, 7)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "varying", "bound"), CASES)
def test_the_same_results(name: str, varying: dict[str, Any], bound: dict[str, Any]) -> None:
    found = lookup(name, "iOS18")
    prepared = found.specialized(varying, bound)
    assert prepared is not None
    with np.errstate(all="ignore"):
        expected = found.compute(**varying, **bound)
        results = prepared.function(*(varying[key] for key in prepared.names))
    assert isinstance(results, tuple) == isinstance(expected, tuple)
    several = isinstance(expected, tuple)
    for one, other in zip(results if several else [results], expected if several else [expected],
                          strict=True):  # fmt: skip
        np.testing.assert_array_equal(one, other, strict=True)


def test_every_specialized_operation_has_a_case() -> None:
    """Those that one loop registers, such as reductions, stand for one another."""
    special = {n for n in names() if lookup(n, "iOS18").special}
    tested = {name for name, _, _ in CASES}
    assert (
        {n for n in special if lookup(n, "iOS18").compute.__name__ != "compute"}
        <= tested
        <= special
    )


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("conv", {"weight": tensor(5, 6, 3)}),
        ("conv", {"weight": tensor(5, 6, 1), "strides": np.int32([2])}),
        ("conv", {"weight": tensor(6, 3, 1), "groups": 2}),
        ("conv", {"weight": tensor(5, 6, 1), "pad_type": "custom", "pad": np.int32([1, 0])}),
        ("reshape", {"shape": np.int32([0, -1])}),
        ("split", {"axis": 1, "num_splits": 3}),
        ("split", {"axis": 1, "split_sizes": np.int32([-1, 7])}),
        ("transpose", {"perm": None}),
    ],
)
def test_what_is_left_to_the_operation_itself(name: str, bound: dict[str, Any]) -> None:
    assert lookup(name, "iOS18").specialized({"x": X}, bound) is None


def test_only_if_just_these_parameters_vary() -> None:
    found = lookup("conv", "iOS18")
    assert found.specialized({"x": X, "bias": X}, {"weight": tensor(5, 6, 1)}) is None


@pytest.mark.parametrize(
    ("name", "bound", "message"),
    [
        ("split", {"axis": 1, "split_sizes": np.int32([2, 3])}, "do not add up to 6"),
        ("conv", {"weight": tensor(5, 7, 1)}, "x has 6 channels; the weight takes 7"),
        ("reshape", {"shape": np.int32([5, -1])}, "cannot reshape"),
    ],
)
def test_operands_that_do_not_fit(name: str, bound: dict[str, Any], message: str) -> None:
    prepared = lookup(name, "iOS18").specialized({"x": X}, bound)
    assert prepared is not None
    with pytest.raises(ValueError, match=message):
        prepared.function(X)
