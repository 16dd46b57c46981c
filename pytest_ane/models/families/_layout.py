"""The host's side of shards: tensors in and out, rotary tables and masks, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from pytest_ane.mlprogram.arrays import FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families import Inputs, Port

MASKED = -1e4
"""What the causal mask adds to a forbidden score: finite, because an infinite mask gives NaN on
the ANE and drives attention off it (rule R052)."""


@dataclass(frozen=True)
class Rotary:
    """Rotate-half RoPE: pair i turns by `frequencies[i]` radians a position; `factor` is of all."""

    frequencies: tuple[float, ...]
    factor: float = 1.0

    @property
    def channels(self) -> int:
        return 2 * len(self.frequencies)

    def tables(self, length: int, start: int = 0) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines `[T, channels]`, both halves alike."""
        position = np.arange(start, start + length)
        angle = np.outer(position, np.tile(self.frequencies, 2))
        cos, sin = np.cos(angle) * self.factor, np.sin(angle) * self.factor
        return cos.astype(np.float32), sin.astype(np.float32)


@dataclass(frozen=True)
class AneLayout:
    """Hidden states enter as `x [1, C, T, 1]`; attention takes `cos`/`sin [1, 1, d, T]` and masks.

    Without a state, its `mask` is `[1, 1, T, T]`. With one it is `[1, 1, T, S]` over the S
    positions of the state, and `write [1, 1, T, S]` says where each position goes.

    Attributes:
        rotary: None where nothing turns.
        context: positions of the state; None where attention sees its own call only.
        window: positions that attention sees, its own included; None for all.
        attends: whether positions see others though nothing turns.
        ring: whether position p is at p modulo `context`, over the one that was there.
        entry_scale, exit_scale: factors of what enters, and of the output.
    """

    family: str
    width: int
    rotary: Rotary | None = None
    context: int | None = None
    window: int | None = None
    recurrent: tuple[str, ...] = ()
    attends: bool = False
    ring: bool = False
    entry_scale: float = 1.0
    exit_scale: float = 1.0

    @property
    def sees(self) -> Literal["itself", "call", "state"]:
        if self.rotary is None and not self.attends:
            return "itself"
        return "call" if self.context is None else "state"

    @property
    def shifts(self) -> bool:
        """RoPE and masks depend on differences of positions alone."""
        return self.sees == "state"

    def inputs(self, hidden: FloatArray, start: int = 0, first: int = 0) -> Inputs:
        """As `Layout.inputs`; `ExecutionError` where the positions do not fit the state."""
        scaled = hidden.T * np.float32(self.entry_scale)
        x = {"x": np.ascontiguousarray(scaled)[None, :, :, None]}
        if self.sees == "itself":
            return x
        length, context, window = len(hidden), self.context, self.window
        if context is not None and not self.ring and start + length > context:
            raise ExecutionError(
                f"positions {start} to {start + length - 1} do not fit a state of "
                f"{context}; raise context in shards.toml or shorten the prompt."
            )
        if self.ring and length > (context or 0) - (window or 1) + 1:
            raise ExecutionError(
                f"a call of {length} positions does not fit a ring of {context} beside the "
                f"{window} that are seen; cut the shard with a larger max-tokens."
            )
        tables = {} if self.rotary is None else _tables(self.rotary, length, start)
        if context is None:
            return x | tables | {"mask": causal_mask(length, window=window)[None, None]}
        return x | tables | _masks(length, start, first, context, window, self.ring)

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        y = outputs.get("y")
        if y is None or y.ndim != 4 or y.shape[0] != 1 or y.shape[3] != 1:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items())
            raise ExecutionError(
                f"A shard of family {self.family!r} gives y [1, C, T, 1], this one "
                f"{shapes or 'nothing'}; is it another family's artifact?"
            )
        rows: FloatArray = np.ascontiguousarray(y[0, :, :, 0].T, dtype=np.float32)
        return rows if self.exit_scale == 1 else rows * self.exit_scale


def attention_ports(width: int, turned: int, context: int | None) -> tuple[Port, ...]:
    x = Port("x", (1, width, "T", 1))
    tables = (Port(name, (1, 1, turned, "T")) for name in ("cos", "sin") if turned)
    if context is None:
        return (x, *tables, Port("mask", (1, 1, "T", "T")))
    return (x, *tables, *(Port(name, (1, 1, "T", context)) for name in ("mask", "write")))


@lru_cache(maxsize=8)
def _tables(rotary: Rotary, length: int, start: int) -> dict[str, FloatArray]:
    """All blocks of a model share the arrays."""
    cos, sin = rotary.tables(length, start)
    return {"cos": cos.T[None, None], "sin": sin.T[None, None]}


@lru_cache(maxsize=8)
def _masks(
    length: int, start: int, first: int, context: int, window: int | None, ring: bool
) -> dict[str, FloatArray]:
    mask = causal_mask(length, start, context, window, first=first, ring=ring)
    return {"mask": mask[None, None], "write": write_mask(length, start, context)}


def causal_mask(
    length: int,
    start: int = 0,
    context: int | None = None,
    window: int | None = None,
    *,
    first: int = 0,
    ring: bool = False,
) -> FloatArray:
    """`[T, S]`: 0 where the key is not later than the query, else `MASKED`.

    Rows are queries from `start` on, columns keys. S is `context`, or T for queries that see only
    one another; keys that are `window` positions older are masked too, and those before `first`.
    In a ring a column holds the last position that was written to it.
    """
    keys = np.arange(length if context is None else context)
    if ring:
        last = start + length - 1
        keys = last - (last - keys) % len(keys)
    age = np.arange(start, start + length)[:, None] - keys
    hidden = (age < 0) | (keys < first)
    if window is not None:
        hidden |= age >= window
    return np.where(hidden, np.float32(MASKED), np.float32(0))


def write_mask(length: int, start: int, context: int) -> FloatArray:
    """`[1, 1, T, S]`: 1 where a position's key and value go in the state, p modulo S; else 0."""
    mask = np.zeros((1, 1, length, context), dtype=np.float32)
    mask[0, 0, np.arange(length), np.arange(start, start + length) % context] = 1
    return mask
