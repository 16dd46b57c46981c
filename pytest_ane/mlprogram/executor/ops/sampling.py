"""Images at other sizes and places: resizing, cropping, sampling at coordinates, boxes cut out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor._registry import register
from pytest_ane.mlprogram.executor.ops.spatial import ints


def grid(mode: str, span: Any, count: int) -> Any:
    """Where `count` samples lie on intervals from 0 to `span [...]`: `[..., count]` in float64.

    The formulas are those of MIL's `resize_bilinear`, with `Xin = span + 1`.
    """
    if count < 1:
        raise ValueError(f"a size of {count} is not positive")
    i, span = np.arange(count, dtype=np.float64), np.asarray(span, np.float64)[..., None]
    aligned = i * span / max(count - 1, 1)
    positions = {
        "DEFAULT": i * (span + 1) / count,
        "STRICT_ALIGN_CORNERS": aligned,
        "ALIGN_CORNERS": aligned if count > 1 else span / 2,
        "OFFSET_CORNERS": (i + 0.5) * np.maximum(span, 1) / count,
        "UNALIGN_CORNERS": (i + 0.5) * (span + 1) / count - 0.5,
    }
    if mode not in positions:
        raise ValueError(f"unknown sampling_mode {mode!r}; there are: {', '.join(positions)}")
    return np.clip(positions[mode], 0, span)


def _resized(x: Any, sizes: Sequence[int], mode: str, *, linear: bool = True) -> Any:
    """Samples along the last axes: between two neighbours, or the nearest; half-way, the latter."""
    for axis, count in zip(range(-len(sizes), 0), sizes, strict=True):
        positions = grid(mode, x.shape[axis] - 1, count)
        if not linear:
            x = np.take(x, np.floor(positions + 0.5).astype(np.intp), axis)
            continue
        low = np.floor(positions).astype(np.intp)
        fraction = (positions - low).astype(x.dtype if x.dtype.kind == "f" else np.float64)
        fraction = fraction.reshape((-1,) + (1,) * (-1 - axis))
        before = np.take(x, low, axis)
        after = np.take(x, np.minimum(low + 1, x.shape[axis] - 1), axis)
        # A neighbour without weight does not count, even an infinite one.
        x = np.where(fraction == 0, before, before * (1 - fraction) + after * fraction)
    return x


# `x [..., H, W]` at another size, by linear interpolation along both axes.
register("resize_bilinear")(
    lambda x, target_size_height=1, target_size_width=1, sampling_mode="DEFAULT": _resized(
        x, (int(target_size_height), int(target_size_width)), sampling_mode
    )
)
# `y[i] = x[floor((i + 1/2) Xin / Xout)]` along both axes: TensorFlow's ResizeNearestNeighbor with
# half_pixel_centers, which is converted to it.
register("resize_nearest_neighbor", moves=True)(
    lambda x, target_size_height, target_size_width: _resized(
        x, (int(target_size_height), int(target_size_width)), "UNALIGN_CORNERS", linear=False
    )
)


@register("resize", opset="iOS17")
def resize(
    x: Any, shape: Any, resized_dims: int, interpolation_mode: str = "LINEAR",
    sampling_mode: str = "DEFAULT",
) -> Any:  # fmt: skip
    """`x` with its last `resized_dims` axes as long as the last of `shape`; 0 leaves an axis be.

    The nearest neighbour's DEFAULT is `resize_nearest_neighbor`.
    """
    x, sizes, resized = np.asarray(x), np.atleast_1d(shape), int(resized_dims)
    if not 0 <= resized <= len(sizes) <= x.ndim:
        raise ValueError(f"{resized} axes of shape {sizes.tolist()} do not fit rank {x.ndim}")
    if interpolation_mode not in ("LINEAR", "NEAREST_NEIGHBOR"):
        raise ValueError(f"unknown interpolation_mode {interpolation_mode!r}")
    linear = interpolation_mode == "LINEAR"
    mode = "UNALIGN_CORNERS" if not linear and sampling_mode == "DEFAULT" else sampling_mode
    counts = [int(sizes[axis]) or x.shape[axis] for axis in range(-resized, 0)]
    return _resized(x, counts, mode, linear=linear)


@register("upsample_nearest_neighbor", moves=True)
def upsample_nearest_neighbor(
    x: Any, scale_factor_height: float = 1, scale_factor_width: float = 1
) -> Any:
    """`x [..., H, W]` scaled: `y[i] = x[floor(i Xin / Xout)]` along both axes."""
    for axis, factor in ((-2, scale_factor_height), (-1, scale_factor_width)):
        size, count = x.shape[axis], _scaled(x.shape[axis], factor)
        x = np.take(x, np.arange(count) * size // count, axis)
    return x


@register("upsample_bilinear")
def upsample_bilinear(
    x: Any, scale_factor_height: float = 1, scale_factor_width: float = 1,
    align_corners: bool = True, half_pixel_centers: bool | None = None,
) -> Any:  # fmt: skip
    """`x [..., H, W]` scaled, by linear interpolation; the factors are those of the sizes."""
    centred = not align_corners if half_pixel_centers is None else half_pixel_centers
    mode = "STRICT_ALIGN_CORNERS" if align_corners else "DEFAULT"
    mode = "UNALIGN_CORNERS" if centred else mode
    height, width = x.shape[-2:]
    sizes = _scaled(height, scale_factor_height), _scaled(width, scale_factor_width)
    return _resized(x, sizes, mode)


def _scaled(size: int, factor: float) -> int:
    """Floor of the product in float32, the factor's type: so the output's shape is declared."""
    count = int(np.floor(np.float32(size) * np.float32(factor)))
    if count < 1:
        raise ValueError(f"a factor of {factor} leaves nothing of {size} elements")
    return count


@register("crop", moves=True)
def crop(x: Any, crop_height: Any, crop_width: Any) -> Any:
    """`x [..., H, W]` without so many rows before and after, and columns likewise."""
    (top, bottom), (left, right) = ints(crop_height, 2, 0), ints(crop_width, 2, 0)
    height, width = x.shape[-2:]
    if min(top, bottom, left, right) < 0 or top + bottom > height or left + right > width:
        raise ValueError(
            f"{height} rows and {width} columns cannot lose {(top, bottom)} and {(left, right)}"
        )
    return x[..., top : height - bottom, left : width - right]


def bilinear(x: Any, batch: Any, h: Any, w: Any, outside: Any = 0) -> Any:
    """The four pixels of `x [B, C, H, W]` around each place, weighted; `outside` beyond the edges.

    `batch` are images' numbers, h and w places in rows and columns, which broadcast to
    `[N, P, Q]`; the result is `[N, C, P, Q]`.
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
    """The pixel nearest to each place (half-way, the even one); otherwise as `bilinear`."""
    rows, columns = (_index(np.rint(p), n) for p, n in ((h, x.shape[2]), (w, x.shape[3])))
    pixels = np.moveaxis(x[batch, :, rows, columns], -1, 1)
    inside = (rows == np.rint(h)) & (columns == np.rint(w))
    return np.where(inside[:, None], pixels, np.asarray(outside).astype(x.dtype))


def _index(position: Any, size: int) -> Any:
    return np.nan_to_num(np.clip(position, 0, size - 1)).astype(np.intp)


@register("resample")
def resample(x: Any, coordinates: Any, **sampling: Any) -> Any:
    """`x [B, C, H, W]` at `coordinates [B, P, Q, 2]`, pairs of column and row: `[B, C, P, Q]`."""
    points = np.asarray(coordinates).astype(np.float64)
    if x.ndim != 4 or points.ndim != 4 or points.shape[-1] != 2 or len(points) != len(x):
        raise ValueError(f"coordinates {points.shape} do not fit images {x.shape}")
    return _sample(x, points[..., 0], points[..., 1], **sampling)


@register("affine")
def affine(
    x: Any, transform_matrix: Any, output_height: int, output_width: int, coordinates_mode: str,
    align_corners: bool, **sampling: Any,
) -> Any:  # fmt: skip
    """`x [B, C, H, W]` where a matrix `[B or 1, 6]` takes each place of the output.

    With rows `a0 a1 a2 b0 b1 b2`, the output's `(x, y)` is the image's
    `(a0 x + a1 y + a2, b0 x + b1 y + b2)`, in the same coordinates.
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
    x: Any, columns: Any, rows: Any, sampling_mode: str, padding_mode: str, padding_value: Any,
    coordinates_mode: str, align_corners: bool,
) -> Any:  # fmt: skip
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


_ORDERS = {"HEIGHT_FIRST": [0, 1, 2, 3], "WIDTH_FIRST": [1, 0, 3, 2]}


@register("crop_resize")
def crop_resize_roi(x: Any, roi: Any, **options: Any) -> Any:
    """Boxes of `x [B, C, H, W]`, bilinearly resized to `[h, w]`; pad_value beyond the image.

    `roi [N, 1, 4, 1, 1]` takes every box from every image, `[N, B, C, h, w]`; with the image's
    number before the four, `[N, 1, 5, 1, 1]`, each from its own: `[N, 1, C, h, w]`. `options` are
    the other parameters of `crop_resize`.
    """
    roi = np.asarray(roi)
    if roi.ndim != 5 or roi.shape[1] != 1 or roi.shape[2] not in (4, 5) or roi.shape[3:] != (1, 1):
        raise ValueError(f"roi {roi.shape} is neither [N, 1, 4, 1, 1] nor [N, 1, 5, 1, 1]")
    rows = roi.reshape(len(roi), -1)
    own = rows.shape[1] == 5
    images = rows[:, 0] if own else np.tile(np.arange(len(x)), len(rows))
    boxes = rows[:, 1:] if own else np.repeat(rows, len(x), axis=0)
    patches = crop_resize(x, boxes, images, **options)
    return patches.reshape(len(roi), 1 if own else len(x), *patches.shape[1:])


@register("crop_resize", opset="iOS17")
def crop_resize(
    x: Any, boxes: Any, box_indices: Any = None, target_height: int = 1, target_width: int = 1,
    normalized_coordinates: bool = False, spatial_scale: float = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST", sampling_mode: str = "DEFAULT",
    pad_value: Any = 0.0,
) -> Any:  # fmt: skip
    """`boxes [N, 4]` of `x [B, C, H, W]`, each from the image that box_indices name.

    The result is `[N, C, h, w]`, bilinearly resized; pad_value beyond the image.
    """
    boxes = np.asarray(boxes).astype(np.float64)
    images = np.arange(len(boxes)) if box_indices is None else np.asarray(box_indices).astype(int)
    if x.ndim != 4 or boxes.ndim != 2 or boxes.shape[1] != 4 or images.shape != (len(boxes),):
        raise ValueError(f"boxes {boxes.shape} of images {images.shape} do not fit x {x.shape}")
    if ((images < 0) | (images >= len(x))).any():
        raise ValueError(f"box_indices {images.tolist()} exceed the {len(x)} images of x")
    starts, ends = _corners(boxes, box_coordinate_mode)
    edges = np.array(x.shape[2:]) - 1
    scale = spatial_scale * (edges if normalized_coordinates else np.ones(2))
    h, w = (
        _positions(starts[:, i] * scale[i], ends[:, i] * scale[i], sampling_mode, int(count))
        for i, count in enumerate((target_height, target_width))
    )
    patches = bilinear(x, images[:, None, None], h[:, :, None], w[:, None, :])
    inside = ((h >= 0) & (h <= edges[0]))[:, :, None] & ((w >= 0) & (w <= edges[1]))[:, None]
    return np.where(inside[:, None], patches, np.asarray(pad_value).astype(x.dtype))


def _corners(boxes: Any, mode: str) -> tuple[Any, Any]:
    """First and last `[N, 2]`, row and column, of `boxes [N, 4]`."""
    kind, _, order = mode.partition("_")
    if kind == "CENTER":
        order = order.removeprefix("SIZE_")
    if kind not in ("CORNERS", "CENTER") or order not in _ORDERS:
        raise ValueError(f"unknown box_coordinate_mode {mode!r}")
    first, second = boxes[:, _ORDERS[order][:2]], boxes[:, _ORDERS[order][2:]]
    return (first, second) if kind == "CORNERS" else (first - second / 2, first + second / 2)


def _positions(start: Any, end: Any, mode: str, count: int) -> Any:
    """Samples `[N, count]` from start to end, which may come before it."""
    along = np.sign(end - start)[:, None] * grid(mode, np.abs(end - start), count)
    low, high = np.minimum(start, end)[:, None], np.maximum(start, end)[:, None]
    return np.clip(start[:, None] + along, low, high)
