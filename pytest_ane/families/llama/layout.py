"""The host's side of Llama shards: tensor layout, rotary tables and masks, in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families.base import Inputs
from pytest_ane.families.blocks import is_head
from pytest_ane.families.layout import (
    causal_mask,
    check_fits,
    rotary,
    to_rows,
    to_tensor,
    write_mask,
)


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
    recurrent: tuple[str, ...] = ()

    def inputs(self, hidden: FloatArray, start: int = 0) -> Inputs:
        """Inputs for hidden states `[T, C]` from position `start` on."""
        x = {"x": to_tensor(hidden)}
        if self.sees == "itself":
            return x
        return x | attention_inputs(len(hidden), start, self.head, self.theta, self.context)

    def output(self, outputs: Inputs) -> FloatArray:
        """`y [1, C, T, 1]` as `[T, C]`; `ExecutionError` where the outputs hold no such `y`."""
        return to_rows(outputs, "llama")


@lru_cache(maxsize=4)
def attention_inputs(
    length: int, start: int, head: int, theta: float, context: int | None
) -> dict[str, FloatArray]:
    """A block's inputs besides its hidden states; all blocks of a model share the arrays."""
    cos, sin = rotary(length, head, theta, start)
    tables = {"cos": cos.T[None, None], "sin": sin.T[None, None]}
    if context is None:
        return tables | {"mask": causal_mask(length)[None, None]}
    check_fits(length, start, context)
    mask = causal_mask(length, start, context)
    return tables | {"mask": mask[None, None], "write": write_mask(length, start, context)}


def layout(description: dict[str, Any], shard: str) -> LlamaLayout:
    """A shard's layout from `LlamaModel.description`, without the weights."""
    context = description["context"]
    return LlamaLayout(
        int(description["width"]),
        int(description["head"]),
        float(description["theta"]),
        "itself" if is_head(shard) else "call" if context is None else "state",
        None if context is None else int(context),
    )
