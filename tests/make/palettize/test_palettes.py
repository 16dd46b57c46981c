"""Groups, axes, threads, bits; the arithmetic itself has tests of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pytest_ane.make.palettize.palettes import (
    Mode,
    Palettes,
    TooManyValues,
    default_threads,
    find_palettes,
    pack,
    palette,
)


def weights(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def find(weight: Any, mode: Mode = "kmeans", nbits: int = 4, **options: int) -> Palettes:
    settings: dict[str, int] = {"groups": 1, "axis": 0, "threads": 1, **options}
    return find_palettes(weight, mode, nbits, **settings)


@pytest.mark.parametrize("mode", ["kmeans", "uniform"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_group_is_palettized_on_its_own(mode: Mode, axis: int) -> None:
    weight = weights(8, 12, 16)
    made = find(weight, mode, 3, groups=4, axis=axis)
    assert made.luts.shape == (4, 8)
    assert made.indices.shape == weight.shape
    pairs = zip(np.split(weight, 4, axis), np.split(made.indices, 4, axis), strict=True)
    for lut, (part, indices) in zip(made.luts, pairs, strict=True):
        alone = find(np.swapaxes(part, 0, axis), mode, 3)
        assert alone.luts[0].tolist() == lut.tolist()
        assert (np.swapaxes(alone.indices, 0, axis) == indices).all()


def test_threads_change_nothing() -> None:
    weight = weights(64, 40_000)
    one, three = (find(weight, nbits=4, groups=64, threads=n) for n in (1, 3))
    assert (one.luts == three.luts).all()
    assert (one.indices == three.indices).all()


def test_the_weight_is_left_as_it_was() -> None:
    weight = weights(4, 8)
    before = weight.copy()
    find(weight, groups=2)
    assert (weight == before).all()
    assert weight.flags.writeable


@pytest.mark.parametrize(("values", "nbits"), [(1, 1), (2, 1), (5, 3), (16, 4), (17, 6), (256, 8)])
def test_unique_takes_the_fewest_bits(values: int, nbits: int) -> None:
    weight = np.tile(weights(values), 3)
    made = find(weight, "unique")
    assert made.nbits == nbits
    assert (made.luts[0][made.indices] == weight).all()


def test_unique_takes_the_bits_of_the_richest_group() -> None:
    weight = np.stack([np.zeros(40), np.arange(40)]).astype(np.float16)
    made = find(weight, "unique", groups=2)
    assert made.luts.shape == (2, 64)
    assert (np.take_along_axis(made.luts, made.indices.astype(int), 1) == weight).all()


def test_unique_of_too_many_values() -> None:
    with pytest.raises(TooManyValues, match="more than 256 distinct values"):
        find(np.arange(257).astype(np.float16), "unique")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["kmeans", "uniform", "unique"])
def test_what_is_no_number(mode: Mode, bad: float) -> None:
    weight = weights(4, 50)
    weight[2, 7] = bad
    with pytest.raises(ValueError, match="NaN"):
        find(weight, mode, groups=4)


@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6, 8])
def test_packing_in_parts(nbits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    indices = np.random.default_rng(0).integers(0, 1 << nbits, (7, 31), dtype=np.uint8)
    whole = pack(indices, nbits, 1)
    monkeypatch.setattr("pytest_ane.make.palettize.palettes._CHUNK", 16)
    assert pack(indices, nbits, 2).tolist() == whole.tolist()
    assert len(whole) == -(-7 * 31 * nbits // 8)


def test_packing_follows_the_rows_whatever_the_layout() -> None:
    indices = np.arange(6, dtype=np.uint8).reshape(2, 3).T
    assert pack(indices, 4, 1).tolist() == [0x30, 0x41, 0x52]


@pytest.mark.parametrize(("said", "threads"), [("3", 3), ("1", 1)])
def test_threads_as_chosen(said: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert default_threads() == threads


@pytest.mark.parametrize("said", ["", "0", "many"])
def test_threads_if_none_are_chosen(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert default_threads() == 5


def test_a_palette_for_coremltools() -> None:
    lut, indices = palette(np.array([[0.0, 0.1], [5.0, 5.5]], np.float32), 1)
    assert lut.tolist() == [np.float16(0.05), 5.25]
    assert lut.dtype == np.float16
    assert indices.tolist() == [0, 0, 1, 1]


def test_a_palette_of_weights_beyond_fp16() -> None:
    with pytest.raises(ValueError, match="NaN or an infinity"):
        palette(np.array([1e6, 0.0]), 1)


@pytest.mark.parametrize(("axis", "groups"), [(0, 6), (1, 4), (0, 1)])
def test_errors_by_row_are_those_of_the_values(axis: int, groups: int) -> None:
    weight = np.random.default_rng(0).standard_normal((24, 20, 2)).astype(np.float16)
    made = find_palettes(weight, "kmeans", 3, groups=groups, axis=axis, threads=2)
    lost = np.square(made.values() - weight.astype(np.float64)).sum((1, 2))
    assert made.values().dtype == np.float32
    assert np.allclose(made.errors(weight, 2), lost, rtol=1e-5)
