"""Palettes of groups: k-means against PyPI's kmeans1d, even steps against coremltools itself."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import kmeans1d
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.palettize import _kmeans as kmeans
from pytest_ane.make.palettize._palettes import find_palettes

ALL = np.arange(kmeans.INFINITE, dtype=np.uint16)


@given(st.floats(-65_000, 65_000))
def test_half_rounds_as_numpy(x: float) -> None:
    assert kmeans.half(x) == float(np.float16(x))


def test_half_rounds_ties_to_even() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    for tie in ((values[1:] + values[:-1]) / 2)[::17]:
        assert kmeans.half(tie) == float(np.float16(tie))


def test_number_knows_every_pattern() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    assert [kmeans.number(int(key)) for key in ALL] == values.tolist()
    assert [kmeans.number(-int(key)) for key in ALL[::13]] == (-values[::13]).tolist()


@pytest.mark.parametrize(
    ("weights", "most"),
    [([0.0, -0.0], 0), ([1.0, -2.0], 0x4000), ([np.inf], 0x7C00), ([-np.inf, 1], 0x7C00)],
)
def test_largest(weights: list[float], most: int) -> None:
    assert kmeans.largest(np.array(weights, np.float16).view(np.uint16)) == most


def test_a_nan_is_larger_than_all() -> None:
    nan = np.array([1.0, np.nan], np.float16).view(np.uint16)
    assert kmeans.largest(nan) > kmeans.INFINITE


@given(st.sampled_from([1, 2, 3, 4, 6]), st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_packing_is_a_stream_of_bits(nbits: int, numbers: list[int]) -> None:
    indices = np.array(numbers, np.uint8) & ((1 << nbits) - 1)
    packed = np.empty(-(-len(indices) * nbits // 8), np.uint8)
    kmeans.pack(indices, nbits, packed)
    bits = np.unpackbits(indices[:, None], axis=1, bitorder="little")[:, :nbits]
    assert packed.tolist() == np.packbits(bits.reshape(-1), bitorder="little").tolist()


def test_where_no_folder_takes_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that cannot be written, and no home folder either."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert kmeans.compiled(lambda x: x + 1)(1) == 2


Half = npt.NDArray[np.float16]


@pytest.fixture(scope="module")
def theirs() -> Any:
    import_coremltools()
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    def compress(weights: Half, nbits: int) -> tuple[Any, Any]:
        with converter_notes(), np.errstate(all="ignore"):
            lut, indices = palettize_weights._get_lut_and_indices(weights, "UNIFORM", nbits, None)
        return lut, indices

    return compress


def same(weights: Half, nbits: int, theirs: Any) -> bool:
    made = find_palettes(weights, "uniform", nbits, groups=1, axis=0, threads=1)
    lut, indices = theirs(weights, nbits)
    equal = np.array_equal(made.luts[0].view(np.uint16), lut.view(np.uint16))
    return equal and np.array_equal(made.indices, indices)


EVEN_SAMPLES = {
    "gaussian": lambda r: r.standard_normal(5000),
    "cauchy": lambda r: np.clip(r.standard_cauchy(5000), -20_000, 20_000),
    "subnormal": lambda r: r.standard_normal(5000) * 1e-7,
    "constant": lambda r: np.full(9, 0.3),
    "zeros": lambda r: np.array([0.0, -0.0, 0.0]),
    "negative": lambda r: -r.random(3000),
    "large": lambda r: r.uniform(-30_000, 30_000, 5000),
    "narrow": lambda r: 1 + r.random(2000) / 100,
    "two values": lambda r: r.choice([-1.0, 2.0], 100),
    "all patterns": lambda r: np.arange(0x7000, dtype=np.uint16).view(np.float16),
}


@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", EVEN_SAMPLES)
def test_the_same_bits_as_coremltools(name: str, nbits: int, theirs: Any) -> None:
    weights = EVEN_SAMPLES[name](np.random.default_rng(0)).astype(np.float16)
    assert same(weights, nbits, theirs)


@settings(max_examples=300, deadline=None)
@given(
    arrays.arrays(np.float16, st.integers(1, 60), elements=st.floats(-30_000, 30_000, width=16)),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
)
def test_the_same_bits_for_any_weights(theirs: Any, weights: Half, nbits: int) -> None:
    assert same(weights, nbits, theirs)


@pytest.mark.parametrize(
    "weights",
    [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0], [-40_000.0, 40_000.0], [0.0, 65_504.0]],
)
def test_what_has_no_even_steps_in_fp16(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="holds a NaN, an infinity, or values too large"):
        find_palettes(np.array(weights, np.float16), "uniform", 4, groups=1, axis=0, threads=1)


SAMPLES = {
    "gaussian": lambda r: r.standard_normal(12_000),
    "outliers": lambda r: r.standard_normal(12_000) * np.where(r.random(12_000) < 0.03, 5, 1),
    "cauchy": lambda r: np.clip(r.standard_cauchy(12_000), -60_000, 60_000),
    "subnormal": lambda r: r.standard_normal(12_000) * 1e-6,
    "grid": lambda r: np.rint(r.standard_normal(12_000) * 20) / 8,
    "far from zero": lambda r: 1000 + r.integers(0, 80, 12_000),
    "few values": lambda r: r.choice([-1.5, 0.0, 0.25, 3.0], 12_000),
}


def sse(weights: Half, lut: Any, indices: Any) -> float:
    values = np.asarray(lut).astype(np.float16).astype(np.float64)
    return float(((values[np.asarray(indices)] - weights.astype(np.float64)) ** 2).sum())


def found(weights: Half, nbits: int) -> tuple[Half, npt.NDArray[np.uint8]]:
    made = find_palettes(weights, "kmeans", nbits, groups=1, axis=0, threads=1)
    return made.luts[0], made.indices


@pytest.mark.drawn
@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_error_above_coremltools(name: str, nbits: int) -> None:
    import_coremltools()
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    weights = SAMPLES[name](np.random.default_rng(0)).astype(np.float16)
    with converter_notes():
        theirs = palettize_weights._get_lut_and_indices(weights, "KMEANS", nbits, None)
    ours = found(weights, nbits)
    assert sse(weights, *ours) <= sse(weights, *theirs)


FP16 = st.floats(-60_000, 60_000, width=16, allow_subnormal=True)
WEIGHTS = st.one_of(
    arrays.arrays(np.float16, st.integers(1, 120), elements=FP16),
    arrays.arrays(np.float16, st.integers(1, 120), elements=st.integers(-9, 9)),
)


@settings(max_examples=150, deadline=None)
@given(WEIGHTS, st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_no_error_above_the_optimum_rounded(weights: Half, nbits: int) -> None:
    wide = weights.astype(np.float64)
    best = kmeans1d.cluster(wide, min(1 << nbits, len(np.unique(wide))))
    ours = sse(weights, *found(weights, nbits))
    assert ours <= sse(weights, best.centroids, best.clusters) * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(WEIGHTS, st.sampled_from([1, 2, 4, 8]))
def test_every_weight_has_the_nearest_value(weights: Half, nbits: int) -> None:
    lut, indices = found(weights, nbits)
    used = lut[: len(np.unique(weights))].astype(np.float64)
    wide = weights.astype(np.float64)
    distances = np.abs(wide[:, None] - used)
    assert (np.abs(wide - lut[indices]) == distances.min(axis=1)).all()
    assert (np.diff(used) > 0).all()


@settings(max_examples=60, deadline=None)
@given(WEIGHTS, st.integers(2, 12))
def test_the_path_is_the_shortest(weights: Half, k: int) -> None:
    distinct, counts = np.unique(weights.astype(np.float64) + 0.0, return_counts=True)
    n = len(distinct)
    if n <= k:
        return
    path, sums = divided(weights, k, guess=1.0)
    assert path[0] == 0
    assert path[k] == n
    assert (np.diff(path) > 0).all()
    cost = sum(kmeans.within(*sums, i, j) for i, j in pairwise(path))
    best = kmeans1d.cluster(weights.astype(np.float64), k)
    exact = ((np.array(best.centroids)[best.clusters] - weights.astype(np.float64)) ** 2).sum()
    assert cost == pytest.approx(exact, rel=1e-9, abs=1e-9 * float(distinct**2 @ counts))


def divided(weights: Half, k: int, guess: float) -> tuple[Any, tuple[Any, Any, Any]]:
    """The cuts of k clusters before rounding, and the running sums."""
    counts, room = np.zeros(1 << 16, np.int32), np.empty((7, 1 << 16), np.int32)
    group = weights.view(np.uint16)
    n = kmeans.count(group, kmeans.largest(group), counts, room[5], room[6])
    sums = tuple(np.empty(1 << 16) for _ in range(3))
    kmeans.run_up(room[5], room[6], n, *sums)
    path = np.empty(k + 1, np.int32)
    kmeans.divide(*sums, n, k, path, room[:5], guess)
    return path, sums  # type: ignore[return-value]


@pytest.mark.parametrize("k", [250, 256, 260, 300, 332])
def test_ties_that_skip_a_number_of_clusters(k: int) -> None:
    # A thousand equal steps: with cells of 3 and 4 any penalty yields 250 or 333 of them.
    lattice = np.arange(1000).astype(np.float16)
    path, _ = divided(lattice, k, guess=1.0)
    sizes = np.diff(path)
    assert sizes.sum() == 1000
    assert set(sizes) <= {3, 4}


@pytest.mark.parametrize("guess", [1e-30, 1e-3, 1.0, 1e30, math.inf])
def test_any_first_guess_leads_there(guess: float) -> None:
    weights = np.random.default_rng(1).standard_normal(3000).astype(np.float16)
    best, _ = divided(weights, 16, guess=0.5)
    path, _ = divided(weights, 16, guess=guess)
    assert (path == best).all()


@pytest.mark.parametrize(
    ("weights", "table", "chosen"),
    [
        ([3.0, -1.0, 3.0, 2.5], [-1.0, 2.5, 3.0, 0.0], [2, 0, 2, 1]),
        ([-0.5] * 7, [-0.5, 0.0], [0] * 7),
        ([0.0, -0.0, 1.0], [0.0, 1.0], [0, 0, 1]),
        ([0.0, 1.0, 10.0, 12.0], [0.5, 11.0], [0, 0, 1, 1]),
    ],
    ids=["as few values as entries", "a constant", "both zeros are one value", "two clusters"],
)
def test_by_hand(weights: list[float], table: list[float], chosen: list[int]) -> None:
    lut, indices = found(np.array(weights, np.float16), len(table).bit_length() - 1)
    assert (lut.tolist(), indices.tolist()) == (table, chosen)
