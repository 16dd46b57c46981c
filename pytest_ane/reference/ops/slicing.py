"""Slices and gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("slice_by_index", moves=True)
def slice_by_index(
    x: Any,
    begin: Any,
    end: Any,
    stride: Any = None,
    begin_mask: Any = None,
    end_mask: Any = None,
    squeeze_mask: Any = None,
) -> Any:
    """x[begin:end:stride] by axis; a mask opens an end, or takes one index and drops the axis."""
    count = len(begin)

    def mask(values: Any) -> list[bool]:
        return [False] * count if values is None else [bool(v) for v in values]

    steps = [1] * count if stride is None else [int(s) for s in stride]
    index: list[Any] = []
    for i, (low, high, drop) in enumerate(
        zip(mask(begin_mask), mask(end_mask), mask(squeeze_mask), strict=True)
    ):
        if drop:
            index.append(int(begin[i]))
        else:
            first = None if low else int(begin[i])
            index.append(slice(first, None if high else int(end[i]), steps[i]))
    return x[tuple(index)]


@register("slice_by_size", moves=True)
def slice_by_size(x: Any, begin: Any, size: Any) -> Any:
    """x[begin : begin + size] by axis; size -1 takes all that is left."""
    return x[
        tuple(
            slice(int(b), None if s == -1 else int(b) + int(s))
            for b, s in zip(begin, size, strict=True)
        )
    ]


@register("gather", moves=True)
def gather(
    x: Any, indices: Any, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Any:
    """Slices of x along an axis, in the order of the indices; the first `batch_dims` axes agree."""
    indices = np.asarray(indices)
    if batch_dims == 0:
        return np.take(x, indices, axis=axis)
    lead = x.shape[:batch_dims]
    rows = x.reshape(-1, *x.shape[batch_dims:])
    picks = indices.reshape(-1, *indices.shape[batch_dims:])
    inner = axis % x.ndim - batch_dims
    taken = np.stack([np.take(r, p, axis=inner) for r, p in zip(rows, picks, strict=True)])
    return taken.reshape(*lead, *taken.shape[1:])


@register("gather_along_axis", moves=True)
def gather_along_axis(x: Any, indices: Any, axis: int = 0, validate_indices: bool = False) -> Any:
    """x[..., indices[...], ...] along an axis, indices of x's rank."""
    return np.take_along_axis(x, indices, axis=axis)
