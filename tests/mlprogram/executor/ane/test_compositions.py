"""The recorded cliffs follow from the rules of the parts."""

from __future__ import annotations

import numpy as np

from pytest_ane.mlprogram.executor.ane.compositions import logsumexp, softplus


def test_softplus_falls_at_its_recorded_cliff() -> None:
    """Issue 2687 of coremltools: falls to 0 above about 10.4."""
    x = np.arange(0x3C00, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    y = softplus(x)
    first = np.flatnonzero(y == 0)[0]
    assert x[first] == 10.3984375
    assert y[first - 1] > 10
    assert not y[first:].any()


def test_logsumexp_falls_at_its_recorded_cliff() -> None:
    """Issue 2690 of coremltools: 32 equal channels fall from 11.1 to 0 at 7.6313 of a sweep."""
    sweep = np.linspace(-15, 15, 2000)
    x = np.repeat(sweep.astype(np.float16).astype(np.float32)[None], 32, axis=0)
    y = logsumexp(x, axes=[0])
    first = np.flatnonzero((y == 0) & (sweep > 1))[0]
    assert round(float(sweep[first]), 4) == 7.6313
    assert abs(y[first - 1] - 11.1) < 0.02


def test_axes_and_kept_dimensions() -> None:
    x = np.zeros((2, 3, 4), np.float32)
    assert logsumexp(x).shape == ()
    assert logsumexp(x, axes=[-1, 0]).shape == (3,)
    assert logsumexp(x, axes=[1], keep_dims=True).shape == (2, 1, 4)
    np.testing.assert_allclose(logsumexp(x, axes=[1]), np.log(3), rtol=1e-2)
