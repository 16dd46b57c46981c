"""The host's side of Gemma 4 shards: tensors, rotary tables and masks of attention, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import layout as shared
from pytest_ane.families.base import Inputs
from pytest_ane.families.gemma4.shards import role


@dataclass(frozen=True)
class Rotary:
    """Angles of a layer: `head` channels of which the share `rotated` turns, at base `theta`."""

    head: int
    theta: float
    rotated: float = 1.0

    def tables(self, length: int, start: int = 0) -> tuple[FloatArray, FloatArray]:
        """Cosines and sines `[T, d]` of rotate-half RoPE.

        Proportional RoPE: the frequencies are those of the whole head, and the pairs beyond the
        share do not turn (`_compute_proportional_rope_parameters` of transformers).
        """
        cos, sin = shared.rotary(length, self.head, self.theta, start)
        pair = np.arange(self.head) % (self.head // 2)
        still = pair >= int(self.rotated * self.head // 2)
        return np.where(still, np.float32(1), cos), np.where(still, np.float32(0), sin)


@dataclass(frozen=True)
class Gemma4Layout:
    """Hidden states enter as `x [1, C, T, 1]`, for `p7` the sum of the other packs below them.

    Attention takes `cos`/`sin [1, 1, d, T]`, and over the S positions of its states
    `mask [1, 1, T, S]` and `write [1, 1, T, S]`, which says where each position goes.

    Attributes:
        window: positions a sliding layer sees, its own included; None for all.
    """

    width: int
    rotary: Rotary | None = None
    window: int | None = None
    context: int = 0
    recurrent: tuple[str, ...] = ()

    @property
    def sees(self) -> Literal["itself", "state"]:
        """All but attention see their own position only."""
        return "itself" if self.rotary is None else "state"

    def inputs(self, hidden: FloatArray, start: int = 0) -> Inputs:
        """Inputs for hidden states `[T, C]` from position `start` on.

        Raises:
            ExecutionError: they do not fit the state.
        """
        x = {"x": shared.to_tensor(hidden)}
        if self.rotary is None:
            return x
        length = len(hidden)
        shared.check_fits(length, start, self.context)
        cos, sin = self.rotary.tables(length, start)
        return x | {
            "cos": np.ascontiguousarray(cos.T)[None, None],
            "sin": np.ascontiguousarray(sin.T)[None, None],
            "mask": mask(length, start, self.context, self.window)[None, None],
            "write": shared.write_mask(length, start, self.context),
        }

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        return shared.to_rows(outputs, "gemma4")


def layout(description: dict[str, Any], shard: str) -> Gemma4Layout:
    """A shard's layout from `Gemma4Model.description`, without the weights."""
    d, of = description, role(shard)
    width = int(d["width"])
    if of.kind != "attn":
        return Gemma4Layout(2 * width if of.combines else width)
    if of.layer in d["global_layers"]:
        rotary = Rotary(d["global_head"], d["global_theta"], d["global_rotated"])
        return Gemma4Layout(width, rotary, None, d["context"])
    return Gemma4Layout(width, Rotary(d["head"], d["theta"]), d["window"], d["context"])


def mask(length: int, start: int, context: int, window: int | None) -> FloatArray:
    """`[T, S]`: 0 where the key is not later, nor `window` positions older, else `MASKED`."""
    allowed = shared.causal_mask(length, start, context)
    if window is not None:
        age = np.arange(start, start + length)[:, None] - np.arange(context)
        allowed[age >= window] = shared.MASKED
    return allowed
