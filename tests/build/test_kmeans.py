"""Palettes: exact where they can be, near the best of all otherwise, nearest entries always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.build.kmeans import palette
from pytest_ane.build.quiet import import_coremltools

NBITS = [1, 2, 3, 4, 6, 8]
INTEGERS = st.lists(st.integers(-200, 200), min_size=1, max_size=120)


def error(weights: np.ndarray, nbits: int) -> float:
    """Sum of squared distances of weights from their palette entries."""
    lut, indices = palette(weights, nbits)
    return distance(weights, lut[indices])


def distance(weights: np.ndarray, entries: np.ndarray) -> float:
    stored = weights.astype(np.float16).astype(np.float64).ravel()
    return float(((entries.astype(np.float64) - stored) ** 2).sum())


@pytest.fixture(scope="module")
def best() -> Any:
    """The least error there is, by coremltools' exact algorithm; centres rounded to fp16."""
    import_coremltools()
    from coremltools._deps import kmeans1d

    def least(weights: np.ndarray, nbits: int) -> float:
        values = weights.astype(np.float16).astype(np.float64).ravel()
        clusters, centres = kmeans1d.cluster(values, min(2**nbits, len(np.unique(values))))
        return distance(weights, np.array(centres)[clusters].astype(np.float16))

    return least


def test_two_clusters() -> None:
    lut, indices = palette(np.array([[0.0, 1.0], [10.0, 12.0]]), 1)
    assert lut.tolist() == [0.5, 11.0]
    assert indices.tolist() == [0, 0, 1, 1]
    assert (lut.dtype, indices.dtype) == (np.float16, np.uint8)


def test_an_outlier_gets_an_entry_of_its_own() -> None:
    lut, _ = palette(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1000.0]), 2)
    assert lut.tolist() == [0.5, 2.5, 4.5, 1000.0]


@pytest.mark.parametrize("nbits", NBITS)
def test_as_many_values_as_entries_are_kept_exactly(nbits: int) -> None:
    weights = np.random.default_rng(nbits).permutation(2**nbits) * 0.25 - 3
    lut, indices = palette(weights, nbits)
    assert lut.tolist() == sorted(weights)
    assert lut[indices].tolist() == weights.tolist()


@pytest.mark.parametrize("nbits", NBITS)
def test_a_constant(nbits: int) -> None:
    lut, indices = palette(np.full((4, 8), -0.75), nbits)
    assert set(lut.tolist()) == {-0.75}
    assert len(lut) == 2**nbits
    assert indices.shape == (32,)


def test_ties_between_two_entries_go_to_one_of_them() -> None:
    lut, indices = palette(np.array([0.0, 1.0, 2.0] * 4), 1)
    assert distance(np.array([0.0, 1.0, 2.0] * 4), lut[indices]) == 2.0


def test_signed_zeros_are_one_value() -> None:
    lut, indices = palette(np.array([-0.0, 0.0, 1.0]), 1)
    assert lut.tolist() == [0.0, 1.0]
    assert indices.tolist() == [0, 0, 1]


def test_subnormals_are_values_like_others() -> None:
    smallest = 2.0**-24
    weights = np.array([0, smallest, 2 * smallest, 3 * smallest])
    assert palette(weights, 2)[0].tolist() == weights.tolist()
    assert palette(weights, 2)[1].tolist() == [0, 1, 2, 3]


def test_the_ends_of_fp16() -> None:
    lut, indices = palette(np.array([-65504.0, 65504.0, 65472.0, 0.0, 1.0]), 2)
    assert lut[indices].tolist()[0] == -65504.0
    assert np.isfinite(lut).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 65520.0, 1e30])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_fp16_cannot_hold_is_refused(bad: float, dtype: type) -> None:
    with np.errstate(over="ignore"):
        weights = np.array([1.0, bad, 2.0]).astype(dtype)
    with pytest.raises(ValueError, match=r"^a weight is NaN, or beyond fp16's largest value"):
        palette(weights, 4)


@pytest.mark.parametrize("nbits", NBITS)
@given(values=INTEGERS)
def test_few_distinct_values_get_the_best_palette(best: Any, nbits: int, values: list[int]) -> None:
    weights = np.array(values, dtype=np.float32) / 8
    assert error(weights, nbits) <= best(weights, nbits) * (1 + 1e-9) + 1e-9


@settings(max_examples=50)
@given(
    st.lists(st.floats(-65504, 65504, width=16), min_size=1, max_size=400),
    st.sampled_from(NBITS),
)
def test_every_index_points_at_the_nearest_entry(values: list[float], nbits: int) -> None:
    weights = np.array(values)
    lut, indices = palette(weights, nbits)
    assert (len(lut), indices.shape) == (2**nbits, weights.shape)
    assert lut.tolist() == sorted(lut.tolist())
    assert np.isfinite(lut).all()
    distances = np.abs(lut.astype(np.float64)[:, None] - weights)
    np.testing.assert_array_equal(
        distances[indices, np.arange(len(weights))], distances.min(axis=0)
    )


@given(INTEGERS, st.sampled_from(NBITS), st.randoms(use_true_random=False))
def test_the_order_of_weights_does_not_matter(values: list[int], nbits: int, random: Any) -> None:
    weights = np.array(values, dtype=np.float32)
    lut, indices = palette(weights, nbits)
    order = np.random.default_rng(random.getrandbits(32)).permutation(len(weights))
    shuffled, moved = palette(weights[order], nbits)
    np.testing.assert_array_equal(shuffled, lut)
    np.testing.assert_array_equal(moved, indices[order])


def draw(name: str, size: int) -> np.ndarray:
    """Seeded weights of a named distribution."""
    rng = np.random.default_rng(sum(map(ord, name)) + size)
    drawn = {
        "normal": lambda: rng.standard_normal(size),
        "laplace": lambda: rng.laplace(size=size),
        "uniform": lambda: rng.uniform(-1, 1, size),
        "student": lambda: rng.standard_t(3, size),
        "two hills": lambda: rng.normal(np.where(np.arange(size) % 2, 5, -5), 0.5),
        "outliers": lambda: np.append(rng.normal(0, 0.01, size - 3), [5, -7, 9]),
        "cauchy": lambda: np.clip(rng.standard_cauchy(size), -6e4, 6e4),
    }
    result: np.ndarray = drawn[name]()
    return result


@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "student", "two hills"])
def test_many_values_get_nearly_the_best_palette(best: Any, name: str, nbits: int) -> None:
    weights = draw(name, 1500)
    assert error(weights, nbits) <= 1.05 * best(weights, nbits)


@pytest.mark.parametrize("nbits", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["outliers", "cauchy"])
def test_heavy_tails_get_a_good_palette(best: Any, name: str, nbits: int) -> None:
    weights = draw(name, 1500)
    assert error(weights, nbits) <= 1.15 * best(weights, nbits)
