"""Numbers that say how close two tensors are; one file each, NaN-safe."""

from __future__ import annotations

from pytest_ane.fidelity.metrics.cosine import cosine, is_cosine
from pytest_ane.fidelity.metrics.error import max_abs_error
from pytest_ane.fidelity.metrics.finite import finite_fraction

__all__ = ["cosine", "finite_fraction", "is_cosine", "max_abs_error"]
