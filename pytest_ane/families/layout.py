"""What layouts of families share: tensors in and out, rotary tables and masks, in numpy."""

from __future__ import annotations

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import ExecutionError
from pytest_ane.families.base import Inputs

MASKED = -1e4
"""What the causal mask adds to a forbidden score: finite, because an infinite mask gives NaN on
the ANE and drives attention off it (rule R052)."""


def to_tensor(hidden: FloatArray) -> FloatArray:
    """Hidden states `[T, C]` as `[1, C, T, 1]`."""
    return np.ascontiguousarray(hidden.T)[None, :, :, None]


def to_rows(outputs: Inputs, family: str) -> FloatArray:
    """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
    y = outputs.get("y")
    if y is None or y.ndim != 4 or y.shape[0] != 1 or y.shape[3] != 1:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items())
        raise ExecutionError(
            f"A shard of family {family!r} gives y [1, C, T, 1], this one {shapes or 'nothing'}; "
            "is it another family's artifact?"
        )
    return np.ascontiguousarray(y[0, :, :, 0].T, dtype=np.float32)


def rotary(length: int, head: int, theta: float, start: int = 0) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines `[T, d]` of rotate-half RoPE, both halves of a head alike.

    Angle of position p and pair i: p * theta^(-2i/d) (Su et al., arXiv 2104.09864).
    """
    frequency = theta ** (-np.arange(0, head, 2, dtype=np.float64) / head)
    position = np.arange(start, start + length)
    angle = np.outer(position, np.concatenate([frequency, frequency]))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def causal_mask(length: int, start: int = 0, context: int | None = None) -> FloatArray:
    """`[T, S]`, row the query from `start` on, column the key: 0 if it is not later, else `MASKED`.

    S is `context`, or T for queries that see only one another.
    """
    keys = np.arange(length if context is None else context)
    queries = np.arange(start, start + length)
    return np.where(keys > queries[:, None], np.float32(MASKED), np.float32(0))


def write_mask(length: int, start: int, context: int) -> FloatArray:
    """`[1, 1, T, S]`: 1 where a position's key and value go in the state, else 0."""
    mask = np.zeros((1, 1, length, context), dtype=np.float32)
    mask[0, 0, np.arange(length), np.arange(start, start + length)] = 1
    return mask


def check_fits(length: int, start: int, context: int) -> None:
    """`ExecutionError` where positions from `start` on do not fit a state of `context`."""
    if start + length > context:
        raise ExecutionError(
            f"positions {start} to {start + length - 1} do not fit a state of "
            f"{context}; raise context in shards.toml or shorten the prompt."
        )
