"""The host's side of Llama shards: tensor layout, rotary tables and causal mask, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.errors import ExecutionError
from pytest_ane.families.base import Inputs
from pytest_ane.sources.base import FloatArray

MASKED = -1e4
"""What the causal mask adds to a forbidden score: finite, because an infinite mask gives NaN on
the ANE and drives attention off it (rule R052)."""


@dataclass(frozen=True)
class LlamaLayout:
    """Hidden states enter as `x [1, C, T, 1]`, with `cos`/`sin [1, 1, d, T]`, `mask [1, 1, T, T]`.

    Head slices take `x` alone; extra inputs are left to the caller to drop by name.
    """

    width: int
    head: int
    theta: float

    def inputs(self, hidden: FloatArray) -> Inputs:
        """Inputs for hidden states `[T, C]` at positions 0 to T-1."""
        length = len(hidden)
        cos, sin = rotary(length, self.head, self.theta)
        return {
            "x": np.ascontiguousarray(hidden.T)[None, :, :, None],
            "cos": cos.T[None, None],
            "sin": sin.T[None, None],
            "mask": causal_mask(length)[None, None],
        }

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        y = outputs.get("y")
        if y is None or y.ndim != 4 or y.shape[0] != 1 or y.shape[3] != 1:
            given = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items())
            raise ExecutionError(
                f"A shard of family 'llama' gives y [1, C, T, 1], this one {given or 'nothing'}; "
                "is it another family's artifact?"
            )
        return np.ascontiguousarray(y[0, :, :, 0].T, dtype=np.float32)


def layout(description: dict[str, Any]) -> LlamaLayout:
    """Rebuild from `LlamaModel.description`."""
    return LlamaLayout(
        int(description["width"]), int(description["head"]), float(description["theta"])
    )


def rotary(length: int, head: int, theta: float) -> tuple[FloatArray, FloatArray]:
    """Cosines and sines `[T, d]` of rotate-half RoPE, both halves of a head alike.

    Angle of position p and pair i: p * theta^(-2i/d) (Su et al., arXiv 2104.09864).
    """
    frequency = theta ** (-np.arange(0, head, 2, dtype=np.float64) / head)
    angle = np.outer(np.arange(length), np.concatenate([frequency, frequency]))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def causal_mask(length: int) -> FloatArray:
    """`[T, T]`, row the query, column the key: 0 where the key is not later, else `MASKED`."""
    return np.triu(np.full((length, length), MASKED, dtype=np.float32), k=1)
