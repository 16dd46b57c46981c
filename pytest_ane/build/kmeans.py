"""One-dimensional k-means on sorted values: a palette for one group of weights.

Lloyd's iteration (IEEE Trans. Inf. Theory 28(2), 1982) needs no distances in one dimension:
clusters of sorted values are intervals, their sums differences of prefix sums, so an iteration
costs 2^n binary searches however large the group is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ITERATIONS = 40


def palette(weights: npt.NDArray[Any], nbits: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A palette of 2^nbits fp16 values and the index of each weight in it.

    Args:
        weights: any shape, finite; compared as the fp16 values they are stored as.
        nbits: 1 to 8.

    Returns:
        `lut` float16 `[2^nbits]`, ascending, and `indices` uint8 of the size of `weights`, flat,
        each pointing at the nearest entry. Exact where there are at most 2^nbits distinct values.
    """
    values = weights.astype(np.float16).astype(np.float64).ravel()
    order = np.sort(values)
    centres = _start(order, 2**nbits)
    sums = np.concatenate([[0.0], np.cumsum(order)])
    for _ in range(_ITERATIONS):
        moved = _means(order, sums, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    lut = np.sort(centres.astype(np.float16))
    indices = np.searchsorted(_midpoints(lut.astype(np.float64)), values)
    return lut, indices.astype(np.uint8)


def _start(order: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    """Distinct values if they suffice; else half way between evenly spaced values and quantiles.

    The best density of levels is the cube root of the values' density (Panter and Dite, 1951),
    which lies between the two.
    """
    distinct = np.unique(order)
    if len(distinct) <= size:
        return np.concatenate([distinct, np.full(size - len(distinct), distinct[-1])])
    quantiles = order[np.linspace(0, len(order) - 1, size).astype(np.int64)]
    return np.sort((quantiles + np.linspace(order[0], order[-1], size)) / 2)


def _means(
    order: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], centres: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Mean of each centre's interval; a centre without values stays where it is."""
    edges = np.searchsorted(order, _midpoints(centres))
    edges = np.concatenate([[0], edges, [len(order)]])
    counts = np.diff(edges)
    means = np.diff(sums[edges]) / np.maximum(counts, 1)
    return np.where(counts > 0, means, centres)


def _midpoints(centres: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (centres[1:] + centres[:-1]) / 2
