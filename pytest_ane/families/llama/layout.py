"""The host's side of Llama shards: tensor layout, rotary tables and masks, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_ane.errors import ExecutionError
from pytest_ane.families.base import Inputs
from pytest_ane.families.llama.config import is_head
from pytest_ane.sources.base import FloatArray

MASKED = -1e4
"""What the causal mask adds to a forbidden score: finite, because an infinite mask gives NaN on
the ANE and drives attention off it (rule R052)."""


@dataclass(frozen=True)
class LlamaLayout:
    """Hidden states enter as `x [1, C, T, 1]`; blocks take `cos`/`sin [1, 1, d, T]` and `mask` too.

    A stateless block's mask is `[1, 1, T, T]`. A stateful one's is `[1, 1, T, S]` over the S
    positions of its state, and `write [1, 1, T, S]` says where each position goes.
    """

    width: int
    head: int
    theta: float
    sees: Literal["itself", "call", "state"] = "call"
    context: int | None = None

    def inputs(self, hidden: FloatArray, start: int = 0) -> Inputs:
        """Inputs for hidden states `[T, C]` from position `start` on."""
        x = {"x": np.ascontiguousarray(hidden.T)[None, :, :, None]}
        if self.sees == "itself":
            return x
        length = len(hidden)
        cos, sin = rotary(length, self.head, self.theta, start)
        x |= {"cos": cos.T[None, None], "sin": sin.T[None, None]}
        if self.context is None:
            return x | {"mask": causal_mask(length)[None, None]}
        if start + length > self.context:
            raise ExecutionError(
                f"positions {start} to {start + length - 1} do not fit a state of "
                f"{self.context}; raise context in shards.toml or shorten the prompt."
            )
        mask = causal_mask(length, start, self.context)
        return x | {"mask": mask[None, None], "write": write_mask(length, start, self.context)}

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


def layout(description: dict[str, Any], shard: str) -> LlamaLayout:
    """Rebuild from `LlamaModel.description`."""
    context = description["context"]
    return LlamaLayout(
        int(description["width"]),
        int(description["head"]),
        float(description["theta"]),
        "itself" if is_head(shard) else "call" if context is None else "state",
        None if context is None else int(context),
    )


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
    return np.eye(context, dtype=np.float32)[None, None, start : start + length]
