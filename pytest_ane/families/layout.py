"""The host's side of shards: tensors in and out, rotary tables and masks, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import ExecutionError
from pytest_ane.families.base import Inputs, Port

MASKED = -1e4
"""What the causal mask adds to a forbidden score: finite, because an infinite mask gives NaN on
the ANE and drives attention off it (rule R052)."""


@dataclass(frozen=True)
class Rotary:
    """Angles of rotate-half RoPE: of `head` channels the share `rotated` turns, at base `theta`."""

    head: int
    theta: float
    rotated: float = 1.0

    def tables(self, length: int, start: int = 0) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines `[T, d]`, both halves of a head alike.

        Angle of position p and pair i: p * theta^(-2i/d) (Su et al., arXiv 2104.09864).
        Proportional RoPE: the frequencies are those of the whole head, and the pairs beyond the
        share do not turn (`_compute_proportional_rope_parameters` of transformers).
        """
        frequency = self.theta ** (-np.arange(0, self.head, 2, dtype=np.float64) / self.head)
        frequency[int(self.rotated * self.head // 2) :] = 0
        position = np.arange(start, start + length)
        angle = np.outer(position, np.concatenate([frequency, frequency]))
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@dataclass(frozen=True)
class AneLayout:
    """Hidden states enter as `x [1, C, T, 1]`; attention takes `cos`/`sin [1, 1, d, T]` and masks.

    Without a state, its `mask` is `[1, 1, T, T]`. With one it is `[1, 1, T, S]` over the S
    positions of the state, and `write [1, 1, T, S]` says where each position goes.

    Attributes:
        family: named in errors.
        rotary: None where a position sees itself only.
        context: positions of the state; None where attention sees its own call only.
        window: positions that attention sees, its own included; None for all.
    """

    family: str
    width: int
    rotary: Rotary | None = None
    context: int | None = None
    window: int | None = None
    recurrent: tuple[str, ...] = ()

    @property
    def sees(self) -> Literal["itself", "call", "state"]:
        """What a position's output depends on."""
        if self.rotary is None:
            return "itself"
        return "call" if self.context is None else "state"

    @property
    def shifts(self) -> bool:
        """RoPE and masks depend on differences of positions alone."""
        return self.sees == "state"

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """Inputs for hidden states `[T, C]` from position `start` on of a sequence from `first` on.

        Raises:
            ExecutionError: they do not fit the state.
        """
        x = {"x": np.ascontiguousarray(hidden.T)[None, :, :, None]}
        if self.rotary is None:
            return x
        shape = (len(hidden), start, first)
        return x | _attention_inputs(*shape, self.rotary, self.context, self.window)

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        y = outputs.get("y")
        if y is None or y.ndim != 4 or y.shape[0] != 1 or y.shape[3] != 1:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items())
            raise ExecutionError(
                f"A shard of family {self.family!r} gives y [1, C, T, 1], this one "
                f"{shapes or 'nothing'}; is it another family's artifact?"
            )
        return np.ascontiguousarray(y[0, :, :, 0].T, dtype=np.float32)


def attention_ports(width: int, head: int, context: int | None) -> tuple[Port, ...]:
    """Inputs of an attention shard, of which `head` channels turn, as `AneLayout` makes them."""
    x = Port("x", (1, width, "T", 1))
    tables = (Port("cos", (1, 1, head, "T")), Port("sin", (1, 1, head, "T")))
    if context is None:
        return (x, *tables, Port("mask", (1, 1, "T", "T")))
    return (x, *tables, *(Port(name, (1, 1, "T", context)) for name in ("mask", "write")))


@lru_cache(maxsize=4)
def _attention_inputs(
    length: int, start: int, first: int, rotary: Rotary, context: int | None, window: int | None
) -> dict[str, FloatArray]:
    """A block's inputs besides its hidden states; all blocks of a model share the arrays."""
    cos, sin = rotary.tables(length, start)
    tables = {"cos": cos.T[None, None], "sin": sin.T[None, None]}
    if context is None:
        return tables | {"mask": causal_mask(length, window=window)[None, None]}
    if start + length > context:
        raise ExecutionError(
            f"positions {start} to {start + length - 1} do not fit a state of "
            f"{context}; raise context in shards.toml or shorten the prompt."
        )
    mask = causal_mask(length, start, context, window)
    mask[:, :first] = MASKED
    return tables | {"mask": mask[None, None], "write": write_mask(length, start, context)}


def causal_mask(
    length: int, start: int = 0, context: int | None = None, window: int | None = None
) -> FloatArray:
    """`[T, S]`: 0 where the key is not later than the query, else `MASKED`.

    Rows are queries from `start` on, columns keys. S is `context`, or T for queries that see only
    one another; keys that are `window` positions older are masked too.
    """
    keys = np.arange(length if context is None else context)
    age = np.arange(start, start + length)[:, None] - keys
    hidden = age < 0 if window is None else (age < 0) | (age >= window)
    return np.where(hidden, np.float32(MASKED), np.float32(0))


def write_mask(length: int, start: int, context: int) -> FloatArray:
    """`[1, 1, T, S]`: 1 where a position's key and value go in the state, else 0."""
    mask = np.zeros((1, 1, length, context), dtype=np.float32)
    mask[0, 0, np.arange(length), np.arange(start, start + length)] = 1
    return mask
