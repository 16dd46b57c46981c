"""Dropped products, against plain integers."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_ane.mlprogram.executor.ane.accumulator import Weight
from pytest_ane.mlprogram.executor.ane.losses import losses
from tests.mlprogram.executor.ane import plain


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_all_products_are_counted(dtype: type) -> None:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((2, 3, 20)) * 2.0 ** rng.uniform(-24, 2, (2, 3, 20))).astype(
        np.float16
    )
    x = (rng.standard_normal((2, 2, 20)) * 2.0 ** rng.uniform(-24, 2, (2, 2, 20))).astype(
        np.float16
    )
    w[0, 0, 0] = 0
    measured = losses(Weight.of(w.astype(dtype)), x)
    products = dropped = 0
    size = lost = 0.0
    for b, o, p, k in np.ndindex(2, 3, 2, 20):
        product = abs(float(w[b, o, k]) * float(x[b, p, k]))
        patterns = (int(n.view(np.uint16)) for n in (w[b, o, k], x[b, p, k]))
        is_dropped = product > 0 and sum(plain.parts(n)[2] for n in patterns) <= -17
        products, size = products + (product > 0), size + product
        dropped, lost = dropped + is_dropped, lost + product * is_dropped
    assert (measured.products, measured.dropped) == (products, dropped)
    assert 0 < dropped < products
    assert (measured.size, measured.lost) == pytest.approx((size, lost))
