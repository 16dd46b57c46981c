"""Numbers that say how close two tensors are; one file each, NaN-safe."""

from __future__ import annotations

from pytest_ane.metrics.contribution import Contributions, contributions, contributions_beside
from pytest_ane.metrics.cosine import cosine, flat_cosine, group_cosines, group_products, is_cosine
from pytest_ane.metrics.error import Extreme, max_abs_error, worst_abs_error, worst_rel_error
from pytest_ane.metrics.finite import finite_fraction
from pytest_ane.metrics.relative import relative_l2
from pytest_ane.metrics.snr import decibels, snr
from pytest_ane.metrics.zero import Zeros, zeros

__all__ = [
    "Contributions",
    "Extreme",
    "Zeros",
    "contributions",
    "contributions_beside",
    "cosine",
    "decibels",
    "finite_fraction",
    "flat_cosine",
    "group_cosines",
    "group_products",
    "is_cosine",
    "max_abs_error",
    "relative_l2",
    "snr",
    "worst_abs_error",
    "worst_rel_error",
    "zeros",
]
