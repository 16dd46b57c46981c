"""fp16 by its bit patterns, and palettes of even steps, against numpy and coremltools."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.make.coremltools_quiet import converter_notes, import_coremltools
from pytest_ane.make.palettize import patterns
from pytest_ane.make.palettize.palettes import find_palettes

ALL = np.arange(patterns.INFINITE, dtype=np.uint16)


@given(st.floats(-65_000, 65_000))
def test_half_rounds_as_numpy(x: float) -> None:
    assert patterns.half(x) == float(np.float16(x))


def test_half_rounds_ties_to_even() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    for tie in ((values[1:] + values[:-1]) / 2)[::17]:
        assert patterns.half(tie) == float(np.float16(tie))


def test_number_knows_every_pattern() -> None:
    values = ALL.view(np.float16).astype(np.float64)
    assert [patterns.number(int(key)) for key in ALL] == values.tolist()
    assert [patterns.number(-int(key)) for key in ALL[::13]] == (-values[::13]).tolist()


@pytest.mark.parametrize(
    ("weights", "most"),
    [([0.0, -0.0], 0), ([1.0, -2.0], 0x4000), ([np.inf], 0x7C00), ([-np.inf, 1], 0x7C00)],
)
def test_largest(weights: list[float], most: int) -> None:
    assert patterns.largest(np.array(weights, np.float16).view(np.uint16)) == most


def test_a_nan_is_larger_than_all() -> None:
    nan = np.array([1.0, np.nan], np.float16).view(np.uint16)
    assert patterns.largest(nan) > patterns.INFINITE


@given(st.sampled_from([1, 2, 3, 4, 6]), st.lists(st.integers(0, 255), min_size=1, max_size=70))
def test_packing_is_a_stream_of_bits(nbits: int, numbers: list[int]) -> None:
    indices = np.array(numbers, np.uint8) & ((1 << nbits) - 1)
    packed = np.empty(-(-len(indices) * nbits // 8), np.uint8)
    patterns.pack(indices, nbits, packed)
    bits = np.unpackbits(indices[:, None], axis=1, bitorder="little")[:, :nbits]
    assert packed.tolist() == np.packbits(bits.reshape(-1), bitorder="little").tolist()


def test_where_no_folder_takes_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that cannot be written, and no home folder either."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert patterns.compiled(lambda x: x + 1)(1) == 2


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


SAMPLES = {
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
@pytest.mark.parametrize("name", SAMPLES)
def test_the_same_bits_as_coremltools(name: str, nbits: int, theirs: Any) -> None:
    weights = SAMPLES[name](np.random.default_rng(0)).astype(np.float16)
    assert same(weights, nbits, theirs)


@settings(max_examples=300, deadline=None)
@given(
    arrays.arrays(np.float16, st.integers(1, 60), elements=st.floats(-30_000, 30_000, width=16)),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
)
def test_the_same_bits_for_any_weights(theirs: Any, weights: Half, nbits: int) -> None:
    assert same(weights, nbits, theirs)


def test_four_steps() -> None:
    weights = np.array([0.0, 0.9, 2.2, 3.0], np.float16)
    made = find_palettes(weights, "uniform", 2, groups=1, axis=0, threads=1)
    assert made.luts.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert made.indices.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "weights",
    [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, 1.0], [-40_000.0, 40_000.0], [0.0, 65_504.0]],
)
def test_what_has_no_even_steps_in_fp16(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="holds a NaN, an infinity, or values too large"):
        find_palettes(np.array(weights, np.float16), "uniform", 4, groups=1, axis=0, threads=1)
