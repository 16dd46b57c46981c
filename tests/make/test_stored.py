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
    assert not _steps(mask, Stage(op, 6, 1, 1)).any()


def test_weights_were() -> None:
    values = np.linspace(-1, 1, 16, dtype=np.float32).repeat(8)
    assert _steps(values, Stage(LUT, 4, 1, 1)) == pytest.approx(2 / 15)
