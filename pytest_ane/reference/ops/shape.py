"""Operations that change a tensor's shape and leave its values alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("identity", moves=True)
def identity(x: Any) -> Any:
    """`x` as it is."""
    return x


@register("reshape", moves=True)
def reshape(x: Any, shape: Any) -> Any:
    """`x` in another shape; 0 keeps an axis, -1 takes what is left."""
    target = [int(d) for d in np.atleast_1d(shape)]
    return np.reshape(x, [x.shape[i] if d == 0 else d for i, d in enumerate(target)])


@register("transpose", moves=True)
def transpose(x: Any, perm: Any) -> Any:
    """Axes in another order."""
    return np.transpose(x, [int(p) for p in perm])


@register("expand_dims", moves=True)
def expand_dims(x: Any, axes: Any) -> Any:
    """Axes of length 1 inserted."""
    return np.expand_dims(x, tuple(int(a) for a in np.atleast_1d(axes)))


@register("squeeze", moves=True)
def squeeze(x: Any, axes: Any = None) -> Any:
    """Axes of length 1 removed; all of them where none are given."""
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in np.atleast_1d(axes)))


@register("shape", moves=True)
def shape(x: Any) -> Any:
    """The shape as integers."""
    return np.array(np.shape(x), dtype=np.int32)


@register("cast")
def cast(x: Any, dtype: str) -> Any:
    """Values in another type; floats are cut off towards zero, and rounded by the result's type."""
    kinds = {"fp16": np.float32, "fp32": np.float32, "bool": np.bool_}
    return np.asarray(x).astype(kinds[dtype] if dtype in kinds else np.dtype(dtype))
