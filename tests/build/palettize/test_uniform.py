"""Even steps, bit for bit as coremltools computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pytest_ane.build.palettize.palettes import find_palettes
from pytest_ane.build.quiet import converter_notes, import_coremltools

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
