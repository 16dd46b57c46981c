"""Numbers that say how close two tensors are; one file a kind of metric, NaN-safe."""

from __future__ import annotations

from pytest_ane.metrics.contribution import (
    Contributions,
    contributions,
    contributions_off_input,
)
from pytest_ane.metrics.cosine import (
    Zeros,
    cosine,
    flat_cosine,
    group_cosines,
    group_products,
    is_cosine,
    zeros,
)
from pytest_ane.metrics.error import (
    WorstError,
    decibels,
    finite_fraction,
    max_abs_error,
    relative_l2,
    snr,
    worst_abs_error,
    worst_rel_error,
)

__all__ = [
    "Contributions",
    "WorstError",
    "Zeros",
    "contributions",
    "contributions_off_input",
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
