"""The host's side of ZAYA1 shards: tensor layout, rotary tables and masks, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.base import Inputs
from pytest_ane.families.blocks import block_index, is_head
from pytest_ane.families.layout import (
    causal_mask,
    check_fits,
    rotary,
    to_rows,
    to_tensor,
    write_mask,
)
from pytest_ane.families.zaya.config import is_attention


@dataclass(frozen=True)
class ZayaLayout:
    """Hidden states enter as `x [1, C, T, 1]`, in mixtures and head slices alone.

    Attention takes `cos`/`sin [1, 1, rotary, T]`, the causal `mask` and the one-hot `write`
    `[1, 1, T, S]`, which says where in its state of S positions each new one goes.
    """

    width: int
    rotary: int
    theta: float
    context: int
    sees: Literal["itself", "state"]

    @property
    def recurrent(self) -> tuple[str, ...]:
        """What the two last positions leave to the next ones; the key-value cache has places."""
        return ("tail",) if self.sees == "state" else ()

    def inputs(self, hidden: FloatArray, start: int = 0) -> Inputs:
        """Inputs for hidden states `[T, C]` from position `start` on.

        Raises:
            ExecutionError: they do not fit the state.
        """
        x = {"x": to_tensor(hidden)}
        if self.sees == "itself":
            return x
        length = len(hidden)
        check_fits(length, start, self.context)
        cos, sin = rotary(length, self.rotary, self.theta, start)
        return x | {
            "cos": cos.T[None, None],
            "sin": sin.T[None, None],
            "mask": causal_mask(length, start, self.context)[None, None],
            "write": write_mask(length, start, self.context),
        }

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        return to_rows(outputs, "zaya")


def layout(description: dict[str, Any], shard: str) -> ZayaLayout:
    """A shard's layout from `ZayaModel.description`, without the weights."""
    return ZayaLayout(
        int(description["width"]),
        int(description["rotary"]),
        float(description["theta"]),
        int(description["context"]),
        "itself" if is_head(shard) or not is_attention(block_index(shard)) else "state",
    )
