"""Steps in a row that run as one where compiled arithmetic can: one pass over memory, not five."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.mil.records import Operation
from pytest_ane.reference.dtypes import compiled
from pytest_ane.reference.segments import segments
from pytest_ane.reference.steps import Compute, Step, Values, free


@dataclass(frozen=True)
class Overwrite:
    """`add(mul(cache, kept), matmul(new, at))`: how a program puts a position into a cache.

    Attributes:
        parts: the three steps, every result of which is rounded to fp16.
        slots: of `cache [*, S]`, `kept [1, S]`, `new [*, 1]` and `at [1, S]`; or other way round.
    """

    parts: tuple[Compute, ...]
    slots: tuple[int, int, int, int]

    @property
    def outputs(self) -> Any:
        """Slots of all three results."""
        return tuple(out for part in self.parts for out in part.outputs)

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Run as one if only the sum is wanted and the shapes are these; else step by step."""
        hidden = (self.parts[0].outputs[0][0], self.parts[1].outputs[0][0])
        found = None
        if keep.isdisjoint(hidden):
            found = overwritten(*[values[slot] for slot in self.slots])
        if found is None:
            for part in self.parts:
                part.run(values, keep)
            return
        values[self.parts[2].outputs[0][0]] = found
        for part in self.parts:
            free(values, part.last_use, keep)


def overwritten(cache: Any, kept: Any, new: Any, at: Any) -> Any:
    """`cache kept + new at`, each product and the sum rounded; None for other shapes and types."""
    kernels = compiled()
    if kept.ndim == cache.ndim and kept.size > cache.size:
        cache, kept = kept, cache
    row = (1,) * (cache.ndim - 1) + cache.shape[-1:]
    if kernels is None or (kept.shape, at.shape, new.shape) != (row, row, (*cache.shape[:-1], 1)):
        return None
    if any(x.dtype.char != "f" for x in (cache, kept, new, at)):
        return None
    lines = [np.ascontiguousarray(x).reshape(-1) for x in (kept, new, at)]
    rows = np.ascontiguousarray(cache).reshape(-1, cache.shape[-1])
    out = np.empty(cache.shape, np.float32)
    kernels.overwrite(rows, *lines, out.reshape(rows.shape))
    # Whoever keeps it, such as a state, need not copy it.
    out.flags.writeable = False
    return out


def fused(operations: Sequence[Operation], steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of these operations, some of them as one."""
    found: list[tuple[Operation, Step]] = []
    for op, step in zip(operations, steps, strict=True):
        found.append((op, step))
        names = [op.op for op, _ in found[-3:]]
        three = [step for _, step in found[-3:]]
        one = _overwrite(three) if names == ["mul", "matmul", "add"] else None
        if one is not None:
            found[-3:] = [(op, one)]
    return tuple(segments(found))


def _overwrite(steps: Sequence[Step]) -> Overwrite | None:
    """Three steps as one, if each takes two computed values and nobody else the products."""
    parts = tuple(step for step in steps if isinstance(step, Compute) and step.rounds)
    takes = [dict(part.inputs) for part in parts]
    if [set(taken) for taken in takes] != [{"x", "y"}] * 3:
        return None
    products = {part.outputs[0][0] for part in parts[:2]}
    if set(takes[2].values()) != products or not products <= set(parts[2].last_use):
        return None
    slots: Any = tuple(taken[key] for taken in takes[:2] for key in ("x", "y"))
    return Overwrite(parts, slots)
