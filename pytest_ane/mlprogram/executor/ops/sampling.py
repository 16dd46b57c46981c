"""Images sampled at given coordinates: resample, affine."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.registry import register


def bilinear(x: Any, batch: Any, h: Any, w: Any, outside: Any = 0) -> Any:
    """The four pixels of `x [B, C, H, W]` around each place, weighted; `outside` beyond the edges.

    Args:
        x: images.
        batch: images' numbers, broadcast to `[N, P, Q]` with h and w.
        h: rows, as numbers that need not be whole.
        w: columns, likewise.
        outside: the pixels' value beyond the image.

    Returns:
        `[N, C, P, Q]`.
    """
    top, left = np.floor(h), np.floor(w)
    total: Any = 0
    for down, right in product((0, 1), (0, 1)):
        weight = (h - top if down else 1 - (h - top)) * (w - left if right else 1 - (w - left))
        weight = weight[:, None].astype(x.dtype)
        pixels = nearest(x, batch, top + down, left + right, outside)
        # A pixel without weight does not count, even an infinite one.
        total = total + np.where(weight == 0, 0, weight * pixels)
    return total


def nearest(x: Any, batch: Any, h: Any, w: Any, outside: Any = 0) -> Any:
    """The pixel of `x [B, C, H, W]` nearest to each place (half-way, the even one).

    Arguments and result as of `bilinear`.
    """
    rows, columns = (_index(np.rint(p), n) for p, n in ((h, x.shape[2]), (w, x.shape[3])))
    pixels = np.moveaxis(x[batch, :, rows, columns], -1, 1)
    inside = (rows == np.rint(h)) & (columns == np.rint(w))
    return np.where(inside[:, None], pixels, np.asarray(outside).astype(x.dtype))


def _index(position: Any, size: int) -> Any:
    """The nearest whole number within an axis; 0 for NaN."""
    return np.nan_to_num(np.clip(position, 0, size - 1)).astype(np.intp)


@register("resample")
def resample(x: Any, coordinates: Any, **sampling: Any) -> Any:
    """`x [B, C, H, W]` at `coordinates [B, P, Q, 2]`, pairs of column and row: `[B, C, P, Q]`.

    Raises:
        ValueError: an unknown mode, or operands of another rank or batch.
    """
    points = np.asarray(coordinates).astype(np.float64)
    if x.ndim != 4 or points.ndim != 4 or points.shape[-1] != 2 or len(points) != len(x):
        raise ValueError(f"coordinates {points.shape} do not fit images {x.shape}")
    return _sample(x, points[..., 0], points[..., 1], **sampling)


@register("affine")
def affine(
    x: Any,
    transform_matrix: Any,
    output_height: int,
    output_width: int,
    coordinates_mode: str,
    align_corners: bool,
    **sampling: Any,
) -> Any:
    """`x [B, C, H, W]` where a matrix `[B or 1, 6]` takes each place of the output.

    With rows `a0 a1 a2 b0 b1 b2`, the output's `(x, y)` is the image's
    `(a0 x + a1 y + a2, b0 x + b1 y + b2)`, in the same coordinates.

    Raises:
        ValueError: an unknown mode, or a matrix of another shape.
    """
    matrix = np.asarray(transform_matrix).astype(np.float64)
    if x.ndim != 4 or matrix.ndim != 2 or matrix.shape[1] != 6 or len(matrix) not in (1, len(x)):
        raise ValueError(f"transform_matrix {matrix.shape} does not fit images {x.shape}")
    row = _places(int(output_height), coordinates_mode, align_corners)[:, None]
    column = _places(int(output_width), coordinates_mode, align_corners)
    a0, a1, a2, b0, b1, b2 = np.repeat(matrix, len(x) // len(matrix), axis=0).T[..., None, None]
    columns, rows = a0 * column + a1 * row + a2, b0 * column + b1 * row + b2
    return _sample(
        x, columns, rows, coordinates_mode=coordinates_mode, align_corners=align_corners, **sampling
    )


def _sample(
    x: Any,
    columns: Any,
    rows: Any,
    sampling_mode: str,
    padding_mode: str,
    padding_value: Any,
    coordinates_mode: str,
    align_corners: bool,
) -> Any:
    modes = {"bilinear": bilinear, "nearest": nearest}
    if sampling_mode.lower() not in modes:
        raise ValueError(f"unknown sampling_mode {sampling_mode!r}; there are: bilinear, nearest")
    h, w = (
        _fold(_pixels(c, n, coordinates_mode, align_corners), n, padding_mode.lower())
        for c, n in ((rows, x.shape[2]), (columns, x.shape[3]))
    )
    batch = np.arange(len(x))[:, None, None]
    return modes[sampling_mode.lower()](x, batch, h, w, padding_value)


def _places(count: int, mode: str, align_corners: bool) -> Any:
    """The coordinates of an output's pixels along an axis; a single one lies in the middle."""
    i = np.arange(count, dtype=np.float64)
    if mode.lower() == "unnormalized":
        return i
    parts = (i + 0.5) / count if not align_corners or count == 1 else i / (count - 1)
    return 2 * parts - 1 if mode.lower() == "normalized_minus_one_to_one" else parts


def _pixels(coordinate: Any, size: int, mode: str, align_corners: bool) -> Any:
    """Coordinates in pixels; corners that are not aligned lie at the outer pixels' edges."""
    if mode.lower() == "unnormalized":
        return coordinate
    if mode.lower() == "normalized_minus_one_to_one":
        coordinate = (coordinate + 1) / 2
    elif mode.lower() != "normalized_zero_to_one":
        raise ValueError(f"unknown coordinates_mode {mode!r}")
    return coordinate * (size - 1) if align_corners else coordinate * size - 0.5


def _fold(position: Any, size: int, mode: str) -> Any:
    """Positions in pixels, brought into the image where the padding repeats it."""
    if mode == "constant":
        return np.clip(position, -2, size + 1)  # All beyond an edge is alike, infinity too.
    if mode == "border":
        return np.clip(position, 0, size - 1)
    if mode == "reflection":
        period = max(2 * (size - 1), 1)
        position = np.mod(position, period)
        return np.clip(np.minimum(position, period - position), 0, size - 1)
    if mode == "symmetric":
        position = np.mod(position + 0.5, 2 * size)
        return np.clip(np.minimum(position, 2 * size - position) - 0.5, 0, size - 1)
    raise ValueError(f"unknown padding_mode {mode!r}")
