"""Padding of a tensor's last axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_ane.reference.registry import register


@register("pad", moves=True)
def pad(x: Any, pad: Any, mode: str = "constant", constant_val: Any = 0) -> Any:
    """Elements before and after axes, given as pairs for the last `len(pad) / 2` of them.

    Raises:
        ValueError: unpaired, negative or too many numbers, an unknown mode, or more elements than
            the axis has to reflect (its length less one) or to replicate (its length).
    """
    x = np.asarray(x)
    pairs = _pairs(np.asarray(pad), x.ndim)
    if x.ndim == 0:
        return x
    if mode == "constant":
        return np.pad(x, pairs, constant_values=np.asarray(constant_val).astype(x.dtype))
    if mode == "reflect":
        _check(pairs, x.shape, mode, 1)
        return np.pad(x, pairs, "reflect")
    if mode == "replicate":
        _check(pairs, x.shape, mode, 0)
        return np.pad(x, pairs, "edge")
    raise ValueError(f"unknown mode {mode!r}; there are: constant, reflect, replicate")


def _pairs(pad: Any, rank: int) -> list[tuple[int, int]]:
    """A pair for every axis; zeros for those that none is given for."""
    if pad.ndim != 1 or len(pad) % 2 or len(pad) > 2 * rank:
        raise ValueError(f"pad {pad.tolist()} is not a list of pairs for at most {rank} axes")
    if (pad < 0).any():
        raise ValueError(f"pad {pad.tolist()} has a negative number")
    given = [(int(before), int(after)) for before, after in pad.reshape(-1, 2)]
    return [(0, 0)] * (rank - len(given)) + given


def _check(pairs: list[tuple[int, int]], shape: tuple[int, ...], mode: str, less: int) -> None:
    for axis, (amounts, size) in enumerate(zip(pairs, shape, strict=True)):
        if max(amounts) > max(size - less, 0):
            raise ValueError(f"mode {mode} cannot add {amounts} to axis {axis} of {size} elements")
