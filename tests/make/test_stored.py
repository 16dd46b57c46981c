"""How much a file's own compression can have lost."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.make.stored import _steps
from pytest_ane.mlprogram.weights import Stage

LUT, BLOCKS = "constexpr_lut_to_dense", "constexpr_blockwise_shift_scale"


@pytest.mark.parametrize("op", [LUT, BLOCKS])
def test_a_mask_was_not_rounded(op: str) -> None:
    """Its two values are all there are, however far apart: no noise of theirs is compression's."""
    mask = np.triu(np.full((16, 16), -1e4, np.float32), 1)
    steps, nearer = _steps(mask, Stage(op, 6, 1, 1))
    assert not steps.any()
    assert not nearer


def test_weights_were() -> None:
    values = np.linspace(-1, 1, 16, dtype=np.float32).repeat(8)
    assert _steps(values, Stage(LUT, 4, 1, 1))[0] == pytest.approx(2 / 15)


@pytest.mark.parametrize("draw", ["normal", "uniform"])
@pytest.mark.parametrize("op", [LUT, BLOCKS])
def test_how_much_nearer_to_zero_they_lay_is_seen_in_the_file(op: str, draw: str) -> None:
    """More of what a step stands for lies on the side where more weights are."""
    ends = (-1, 1) if draw == "uniform" else ()
    was = getattr(np.random.default_rng(0), draw)(*ends, size=1 << 16)
    step = np.abs(was).max() / 8
    stored = (step * (np.floor(was / step) + 0.5)).astype(np.float32)
    _, nearer = _steps(stored, Stage(op, 4, 1, 1))
    assert nearer == pytest.approx(1 - was @ stored / (stored @ stored), abs=0.005)
