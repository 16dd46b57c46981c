"""Weights that no compression makes of the uncompressed program's: what became of them is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pytest_ane.make.stored import foreign_weights
from pytest_ane.mlprogram.pairing import WeightPair
from pytest_ane.mlprogram.records import Operation
from pytest_ane.mlprogram.weights import Stage, Weight

EXACT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
PALETTE = (Stage("constexpr_lut_to_dense", 4),)


def palettized(values: Any) -> Any:
    """Values at the nearest of 16 entries, by k-means."""
    table = np.quantile(values, (np.arange(16) + 0.5) / 16)
    for _ in range(30):
        nearest = np.abs(values[..., None] - table).argmin(-1)
        table = np.array([values[nearest == i].mean() for i in range(16)])
    return table.astype(np.float16).astype(np.float32)[nearest]


def pair(
    stored: Any, exact: Any, name: str = "w", stages: tuple[Stage, ...] = PALETTE, op: str = "conv"
) -> WeightPair:
    weight = Weight(name, exact.shape, 1, 4, stages, op_types=(op,))
    return WeightPair(weight, Operation("const", {}, ()), stored, exact)


@pytest.mark.parametrize(
    "stored",
    [
        palettized(EXACT),
        palettized(EXACT) * (1 + 2**-11),
        palettized(EXACT + 0.05 * np.sign(EXACT)),  # As a compressor that heeds activations may.
    ],
)
def test_what_compression_makes_is_no_other_weight(stored: Any) -> None:
    assert foreign_weights([pair(stored, EXACT)]) == {}


def _zeroed(values: Any) -> Any:
    values[3] = 0
    return values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.T, "wrong function: w is that of {plain} transposed"),
        (lambda w: w[:, ::-1], "wrong function: w is that of {plain} reversed"),
        (
            lambda w: w[[0, 1, 3, 2, 4, 5, 6, 7]],
            "another program's weights, or damaged: w has rows 3, 2 of {plain} in rows 2 to 3",
        ),
        (
            lambda w: np.roll(w, 1, 0),
            "another program's weights, or damaged: w has rows 7, 0, 1 and 5 more of {plain} all "
            "over",
        ),
        (_zeroed, "another program's weights, or damaged: w is zero, and not in {plain}, in row 3"),
        (
            lambda w: np.cos(40 * w),
            "another program's weights, or damaged: no compression makes w of that of {plain} all "
            "over",
        ),
    ],
)
def test_what_became_of_another_weight(change: Callable[[Any], Any], said: str) -> None:
    stored = change(palettized(EXACT))
    assert foreign_weights([pair(stored, EXACT)]) == {"w": said}


@pytest.mark.parametrize(("gain", "said"), [(-0.5, "-0.5"), (1.5, "1.5")])
def test_a_weight_that_is_a_number_times_its_own(gain: float, said: str) -> None:
    (found,) = foreign_weights([pair(EXACT * np.float32(gain), EXACT, stages=())]).values()
    assert found == (
        f"another program's weights, or damaged: w is {said} times that of {{plain}} all over"
    )


def test_layers_that_hold_each_other_s_weights() -> None:
    other = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    pairs = [pair(palettized(other), EXACT, "q"), pair(palettized(EXACT), other, "v")]
    assert foreign_weights(pairs) == {
        "q": "wrong function: q holds v of {plain}",
        "v": "wrong function: v holds q of {plain}",
    }


def test_a_constant_that_is_not_compressed_may_be_rounded() -> None:
    bias = EXACT[0]
    assert foreign_weights([pair(bias * (1 + 2**-10), bias, stages=())]) == {}
    (said,) = foreign_weights([pair(bias * 0, bias, stages=())]).values()
    assert said.endswith("w is zero, and not in {plain}, all over")


def test_a_mask_has_few_values_and_is_exact() -> None:
    mask = np.where(np.tri(8), 0, -1e4).astype(np.float32)
    late = np.where(np.tri(8, k=1), 0, -1e4).astype(np.float32)
    assert foreign_weights([pair(mask, mask, op="add")]) == {}
    assert foreign_weights([pair(late, mask, op="add")]) != {}


def test_a_row_of_few_values_may_have_lost_the_rest() -> None:
    """One outlier sets the scale of a row, and all other values are rounded to zero."""
    exact = EXACT.copy()
    exact[2] *= 1e-3
    exact[2, 0] = 4.0
    stored = exact.copy()
    stored[2, 1:] = 0
    stages = (Stage("constexpr_blockwise_shift_scale", 4, groups=8),)
    assert foreign_weights([pair(stored, exact, stages=stages)]) == {}


def test_an_outlier_sets_the_scale_of_integers() -> None:
    """Of the values beside it few integers are left, and the steps between them show no scale."""
    exact = EXACT.copy()
    exact[:, 0] = 40.0
    scale = np.float32(40 / 127)
    stored = np.rint(exact / scale) * scale
    stages = (Stage("constexpr_blockwise_shift_scale", 8, groups=8),)
    assert foreign_weights([pair(stored, exact, stages=stages)]) == {}
    stored[3, 1:] += 8 * scale
    (said,) = foreign_weights([pair(stored, exact, stages=stages)]).values()
    assert said.endswith("in row 3")


def test_pruning_may_leave_out_large_values_and_changes_no_other() -> None:
    stages, half = (Stage("constexpr_sparse_to_dense", 16),), np.arange(8) % 4 < 2
    assert foreign_weights([pair(EXACT * half, EXACT, stages=stages)]) == {}
    (said,) = foreign_weights([pair(EXACT * half * 4, EXACT, stages=stages)]).values()
    assert said.endswith("w is 4 times that of {plain} all over")
    (said,) = foreign_weights([pair(EXACT * 0, EXACT, stages=stages)]).values()
    assert said.endswith("w is zero, and not in {plain}, all over")


def test_vectors_are_left_to_the_compression_gate() -> None:
    stages = (Stage("constexpr_lut_to_dense", 4, vector=2),)
    assert foreign_weights([pair(-EXACT, EXACT, stages=stages)]) == {}
