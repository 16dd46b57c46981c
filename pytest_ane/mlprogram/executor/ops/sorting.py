"""Sorting along an axis, and the most probable class.

Equal values keep their order, NaN comes last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.registry import register


def _order(x: Any, axis: int, ascending: bool) -> Any:
    """Indices that sort x; reversing the values instead of the result keeps the order of equals."""
    if not ascending:
        # For integers -x may overflow; ~x, which is -x - 1, never does.
        x = ~x if x.dtype.kind in "biu" else -x
    return np.argsort(x, axis=axis, kind="stable")


@register("argsort")
def argsort(x: Any, axis: int = -1, ascending: bool = False) -> Any:
    """Indices of the values in descending or ascending order, as int32."""
    return _order(np.asarray(x), axis, ascending).astype(np.int32)


@register("topk", moves=True)
def topk(
    x: Any,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str | None = None,
) -> Any:
    """The k greatest values along an axis, or the least if ascending, and their indices.

    Args:
        x: rank 1 or more.
        k: how many; -1 (iOS 17) takes all.
        axis: may be negative.
        ascending: whether the least come first.
        sort: False (iOS 16) allows any order.
        return_indices: whether there is a second result (iOS 16).
        output_indices_dtype: `int32` (default) or `uint16` (iOS 17).

    Raises:
        ValueError: there are fewer than k; the indices' type is another, is given although none are
            returned, or cannot hold an index.
    """
    if not return_indices and output_indices_dtype is not None:
        raise ValueError("output_indices_dtype is given, but return_indices is false")
    dtype = output_indices_dtype or "int32"
    if dtype not in ("int32", "uint16"):
        raise ValueError(f"output_indices_dtype is {dtype!r}, not 'int32' or 'uint16'")
    x = np.asarray(x)
    count = x.shape[axis] if k == -1 else int(k)
    if not 0 <= count <= x.shape[axis]:
        raise ValueError(f"k {count} is not from 0 to {x.shape[axis]}, the size of axis {axis}")
    indices = np.take(_order(x, axis, ascending), np.arange(count), axis=axis)
    values = np.take_along_axis(x, indices, axis=axis)
    if indices.size and indices.max() > np.iinfo(dtype).max:
        raise ValueError(f"index {indices.max()} does not fit {dtype}")
    return (values, indices.astype(dtype)) if return_indices else values


@register("classify", moves=True)
def classify(probabilities: Any, classes: Any) -> Any:
    """The class of the highest probability (the first of several), and probabilities by class.

    Returns:
        A text or an integer; a dict from classes, of one of these types, to floats.
    """
    labels = [c if isinstance(c, str) else int(c) for c in classes]
    values = np.ravel(probabilities)
    if len(labels) != values.size or not labels:
        raise ValueError(f"{values.size} probabilities for {len(labels)} classes")
    by_class = dict(zip(labels, values.tolist(), strict=True))
    return labels[int(np.argmax(values))], by_class
