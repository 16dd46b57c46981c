"""Magnitudes up to which weights become zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.build.percentile import exact_percentiles, percentile
from pytest_ane.build.quiet import import_coremltools

Q = st.floats(0, 1)


@given(values=st.lists(st.floats(0, 100, width=16), min_size=1, max_size=50), share=Q)
def test_as_many_values_as_numpy_would_take(values: list[float], share: float) -> None:
    array = np.array(values)
    ours, theirs = percentile(array, share * 100), np.percentile(array, share * 100)
    assert ours <= theirs * (1 + 1e-12)
    assert np.count_nonzero(array <= ours) >= np.floor(len(values) * share)


@pytest.fixture(scope="module")
def pruner() -> Any:
    import_coremltools()
    from coremltools.optimize.coreml._quantization_passes import prune_weights

    return prune_weights


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("options", [{}, {"block_size": 4, "dim": 0}], ids=["single", "blocks"])
def test_weights_beyond_the_range_of_fp16(
    pruner: Any, share: float, options: dict[str, int]
) -> None:
    weight = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float16)
    with exact_percentiles():
        stored = pruner.compress_by_magnitude(weight, share, **options).nonzero_data
    zeros = 1 - len(stored) / weight.size
    assert share <= zeros < share + 0.01


def test_numpy_itself_stays_as_it_is(pruner: Any) -> None:
    before = np.percentile
    with exact_percentiles():
        assert np.percentile is before
    assert pruner.compress_by_magnitude.__globals__["np"] is np
