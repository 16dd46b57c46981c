"""What a shard adds to its residual path, held against what its reference adds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ane.metrics.cosine import cosine
from pytest_ane.metrics.zero import RESOLUTION

_ROUNDING = 2.0**-10
"""Distance of fp16 numbers in relation to them (its machine epsilon): a sum is known no better."""
_CLEAR = 8.0
"""How many times what rounding takes one side must add where the other adds nothing."""


class Contributions(NamedTuple):
    """The contributions of `[T, C]` outputs, by row.

    Attributes:
        cosines: `[T]`; NaN where a value is not finite or only one side adds anything.
        idle: `[T]`, rows to which neither side adds anything that fp16 can tell from the residual.
        ratios: `[T]`, |residual| / |contribution| of the reference: how much the residual hides.
        single: `[T]`, rows to which one side alone adds anything; of a path that is known.
    """

    cosines: npt.NDArray[np.float64]
    idle: npt.NDArray[np.bool_]
    ratios: npt.NDArray[np.float64]
    single: npt.NDArray[np.bool_]


def contributions(
    a: npt.NDArray[Any], b: npt.NDArray[Any], residual: npt.NDArray[Any]
) -> Contributions:
    """Cosines of (a - residual) and (b - residual); differences are taken in float64.

    A transformer's shard returns x + f(x), and its cosine is that of x with itself where |x| is
    large: of |x| = 20 |f| a contribution at 0.95 shows as 0.9999.

    A row is idle if every value that is added is at most 2^-10 of the residual's own (and 2^-24,
    fp16's smallest number), or on one side twice that: it is lost in the rounding of the sum. Where
    the other side's norm is above eight times that of what is lost, only one side adds anything.

    Raises:
        ValueError: the shapes differ.
    """
    if not a.shape == b.shape == residual.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}, less {residual.shape}")
    path = np.asarray(residual, np.float64)
    with np.errstate(invalid="ignore"):
        x, y = np.asarray(a, np.float64) - path, np.asarray(b, np.float64) - path
    lost = np.maximum(_ROUNDING * np.abs(path), RESOLUTION)
    found = _compared(x, y, path, lost)
    single = _single(x, y, lost) | _single(y, x, lost)
    return found._replace(cosines=np.where(single, np.nan, found.cosines), single=single)


def contributions_beside(
    a: npt.NDArray[Any], b: npt.NDArray[Any], x: npt.NDArray[Any]
) -> Contributions:
    """The same where the residual path is not known: the component along the input is taken out.

    a - (a.x / x.x) x, and b likewise: all that is known of a path that may scale the input. What
    the shard itself adds along x is taken out with it.

    Raises:
        ValueError: the shapes differ.
    """
    if not a.shape == b.shape == x.shape:
        raise ValueError(f"cannot compare {a.shape} with {b.shape}, beside {x.shape}")
    a, b, x = (np.asarray(one, np.float64) for one in (a, b, x))
    along, path = _along(a, x), _along(b, x)
    with np.errstate(invalid="ignore"):
        lost = np.maximum(_ROUNDING * np.abs(path), RESOLUTION)
        return _compared(a - along, b - path, path, lost)


def _compared(
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    path: npt.NDArray[np.float64],
    lost: npt.NDArray[np.float64],
) -> Contributions:
    with np.errstate(invalid="ignore", divide="ignore"):
        x_lost, y_lost = _most(np.abs(x) / lost), _most(np.abs(y) / lost)
        idle = (np.minimum(x_lost, y_lost) <= 1) & (np.maximum(x_lost, y_lost) <= 2)
        ratios = np.linalg.norm(path, axis=1) / np.linalg.norm(y, axis=1)
    return Contributions(cosine(x, y), idle, ratios, np.zeros(len(x), np.bool_))


def _single(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], lost: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Rows where all of x is lost, and y clearly is not."""
    with np.errstate(invalid="ignore"):
        clear = np.linalg.norm(y, axis=1) > _CLEAR * np.linalg.norm(lost, axis=1)
        return np.asarray((_most(np.abs(x) / lost) <= 1) & clear)


def _most(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = x.max(axis=1, initial=0.0)
    return found


def _along(y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The component of each row of y along that of x; of a row of zeros nothing."""
    with np.errstate(invalid="ignore"):
        squares = np.einsum("tc,tc->t", x, x)
        share = np.einsum("tc,tc->t", y, x) / np.where(squares == 0, 1.0, squares)
        component: npt.NDArray[np.float64] = share[:, None] * x
    return component
