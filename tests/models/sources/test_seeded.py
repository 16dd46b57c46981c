"""Seeded weights: the same bytes everywhere, the spread asked for, rows without the rest."""

from __future__ import annotations

import hashlib
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import SourceError
from pytest_ane.models.sources import SeededSource, Spread


def source(seed: int = 7, config: Any = None, **spread: float) -> SeededSource:
    return SeededSource(seed, lambda *_: Spread(**{"std": 0.02, **spread}), config)


def sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.mark.parametrize(
    ("seed", "spread", "name", "shape", "digest"),
    [
        (7, {}, "w", (3, 5), "fdd744ad2f367b4bd6d9a903"),
        (7, {"outliers": 0.03}, "model.layers.1.w", (300, 512), "8dbcf53cb97b25b60ce9f34c"),
        (0, {"mean": 1.0, "std": 0.1}, "norm", (65537,), "f9cf377385d27f24a4ea1f8c"),
        (2**63, {"std": 1e-6}, "ä", (2, 3, 4, 1), "42ff9767a91157898fa42502"),
    ],
)
def test_the_bytes_are_pinned(
    seed: int, spread: dict[str, float], name: str, shape: tuple[int, ...], digest: str
) -> None:
    """Another digest on any machine breaks every cache and every figure: raise GENERATOR then."""
    made = source(seed, **spread).tensor(name, shape, np.float16)
    assert sha256(made)[:24] == digest


def test_a_share_of_zeros_is_of_all_sizes() -> None:
    values, rest = (source(mean=1.0, std=0.5, zeros=z).tensor("w", (8192,)) for z in (0.125, 0.0))
    zero = values == 0
    assert zero.mean() == pytest.approx(0.125, abs=0.01)
    np.testing.assert_array_equal(values[~zero], rest[~zero])
    assert rest[zero].mean() == pytest.approx(1, abs=0.05)


def test_values_are_those_that_are_documented() -> None:
    """The first values, computed from the documentation's words."""
    seed = int.from_bytes(hashlib.sha256(b"pytest-ane/1/7/w").digest(), "little")
    word = int(np.random.PCG64(seed).random_raw(1)[0])
    ranks = [word >> (16 * i) & 0xFFFF for i in range(4)]
    quantiles = [NormalDist().inv_cdf((rank + 0.5) / 65536) for rank in ranks]
    expected = [float(np.float16(0.02 * z)) for z in quantiles]
    assert source().tensor("w", (4,), np.float16).tolist() == expected


def test_mean_deviation_and_outliers() -> None:
    plain = source(std=0.5, mean=-2.0).tensor("w", (1 << 20,))
    assert plain.mean() == pytest.approx(-2.0, abs=2e-3)
    assert plain.std() == pytest.approx(0.5, rel=2e-3)
    mixed = source(std=1.0, outliers=0.03).tensor("w", (1 << 20,))
    assert mixed.std() == pytest.approx((0.97 + 0.03 * 25.25) ** 0.5, rel=5e-3)
    beyond = 2 * (0.97 * NormalDist().cdf(-5) + 0.03 / 4)
    assert (np.abs(mixed) > 5).mean() == pytest.approx(beyond, rel=0.03)


def test_neighbours_are_independent() -> None:
    x = source(std=1.0).tensor("w", (1 << 18,))
    for lag in (1, 2, 3, 4, 64):
        assert abs(np.mean(x[:-lag] * x[lag:])) < 0.01


def test_names_and_seeds_give_other_values() -> None:
    first = source(1).tensor("a", (64,))
    for other in (source(1).tensor("b", (64,)), source(2).tensor("a", (64,))):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.5
    np.testing.assert_array_equal(source(1).tensor("a", (64,)), first)


def test_float32_holds_the_float16_values() -> None:
    half, full = (source().tensor("w", (1000,), dtype) for dtype in (np.float16, np.float32))
    assert (half.dtype, full.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(half.astype(np.float32), full)


def test_no_deviation_gives_the_mean() -> None:
    assert source(std=0.0, mean=1.5).tensor("w", (2, 2)).tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_the_family_s_spread_is_asked_by_name_and_shape() -> None:
    asked = []

    def spread(name: str, shape: tuple[int, ...]) -> Spread:
        asked.append((name, shape))
        return Spread(1.0)

    seeded = SeededSource(1, spread)
    seeded.tensor("a", (2, 3))
    seeded.rows("b", [4, 5], 3)
    assert asked == [("a", (2, 3)), ("b", (0, 3))]


@given(
    width=st.integers(1, 9),
    index=st.lists(st.integers(0, 29), max_size=12),
    seed=st.integers(0, 2**64),
)
def test_rows_are_those_of_the_whole(width: int, index: list[int], seed: int) -> None:
    made = source(seed)
    whole = made.tensor("w", (30, width))
    np.testing.assert_array_equal(made.rows("w", index, width), whole[index])


def test_rows_across_the_chunks_of_a_large_tensor() -> None:
    whole, index = source().tensor("w", (400, 999)), [65, 66, 67, 0, 398, 399, 131, 3]
    np.testing.assert_array_equal(source().rows("w", index, 999), whole[index])
    np.testing.assert_array_equal(source().rows("w", range(400), 999), whole)


def test_a_row_beyond_the_height_is_none() -> None:
    assert source().rows("w", [3, 4], 2, 5).shape == (2, 2)
    for index in ([3, 4, 5], [9], [-1]):
        with pytest.raises(SourceError, match=rf"w has no row {index[-1]}\."):
            source().rows("w", index, 2, 5)


def test_a_row_far_out_costs_nothing_before_it_and_tensors_may_be_empty_or_scalar() -> None:
    assert np.isfinite(source().rows("w", [10**12], 8)).all()
    assert source().tensor("w", (0, 4)).shape == source().rows("w", [], 4).shape == (0, 4)
    assert source().tensor("w", ()).shape == ()


def test_what_it_says_of_itself() -> None:
    made = source(7, {"num_hidden_layers": 4, "text_config": {"hidden_size": 64}})
    assert (made.label, made.synthetic, list(made.names)) == ("seeded 7", True, [])
    assert made.value("num_hidden_layers") == 4
    assert made.value("text_config.hidden_size") == 64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.value("vocab_size"), "seeded 7: config has no key 'vocab_size'."),
        (lambda s: s.value("layers.first"), "seeded 7: config has no key 'layers.first'."),
        (lambda s: s.tokenizer, "seeded 7: synthetic weights come without a tokenizer"),
        (lambda s: s.tensor("w", (1 << 20, 1 << 20)), "seeded 7: w of shape (1048576, 1048576)"),
        (lambda s: s.tensor("w", (-1, -1)), "seeded 7: w of shape (-1, -1) cannot be made"),
        (lambda s: s.rows("w", [3, -1], 4), "seeded 7: w has no row -1."),
        (lambda s: s.rows("w", [3, 8], 4, 8), "seeded 7: w has no row 8."),
        (lambda s: s.rows("w", [6, 7, 8, 9, 10], 4, 9), "seeded 7: w has no row 9."),
        (lambda s: s.tensor("w", (4,), np.int8), "seeded 7: w is given as float16 or float32"),
    ],
)
def test_what_there_is_not(call: Any, message: str) -> None:
    with pytest.raises(SourceError) as error:
        call(source(7, {"layers": 4}))
    assert message in str(error.value)
