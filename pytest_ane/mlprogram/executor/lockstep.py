"""Several inputs at once: every operation for all of them before the next one.

A weight that is decoded in every run is then decoded once for all inputs, and multiplied with all
their columns in one product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any

import numpy as np

from pytest_ane.mlprogram.executor.budget import Budget, Meter
from pytest_ane.mlprogram.executor.steps import Compute, PreparedBlock, Step, Values, free
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.records import Operation


def run_all(
    block: PreparedBlock, tables: Sequence[Values], keep: AbstractSet[int], budget: Budget
) -> None:
    """Run a block on several tables of values, each of one input; `keep` as in `Step.run`.

    Raises:
        BudgetError: it takes more than the budget allows.
    """
    meter = Meter(budget, lambda: chain(*tables), len(tables))
    if len(tables) == 1:
        block.run(tables[0], keep, meter)
        return
    for step in block.steps:
        if not tables or not _run_joined(step, tables, keep, meter):
            for values in tables:
                step.run(values, keep, meter)


def join_axis(op: Operation, constants: Mapping[str, Any]) -> int | None:
    """The axis of `x` along which inputs may be joined for a streamed weight; None for no such op.

    A 1x1 convolution treats positions alike, and so does a linear layer.
    """
    weight = constants.get("weight")
    if not isinstance(weight, StreamedWeight):
        return None
    if op.op == "linear":
        return -2
    pointwise = (
        set(weight.shape[2:]) <= {1}
        and constants.get("groups", 1) == 1
        and np.all(np.asarray(constants.get("strides", 1)) == 1)
        and (constants.get("pad_type", "valid") != "custom" or not np.any(constants.get("pad", 0)))
    )
    return 2 if pointwise else None


def _run_joined(step: Step, tables: Sequence[Values], keep: AbstractSet[int], meter: Meter) -> bool:
    """Run a step once on its inputs joined, if they can be; whether it was done."""
    if not isinstance(step, Compute) or step.joins is None:
        return False
    # None at all where `x` is a constant, two where a bias is computed.
    if [key for key, _ in step.inputs] != ["x"]:
        return False
    slot = step.inputs[0][1]
    if not isinstance(slot, int):
        return False
    arrays = [values[slot] for values in tables]
    if not _alike(arrays, step.joins):
        return False
    joined = list(tables[0])
    joined[slot] = np.concatenate(arrays, axis=step.joins)
    step.run(joined, keep | {slot}, meter)
    ((out, _),) = step.outputs
    ends = np.cumsum([array.shape[step.joins] for array in arrays])[:-1]
    for values, result in zip(tables, np.split(joined[out], ends, axis=step.joins), strict=True):
        values[out] = result
        free(values, step.last_use, keep)
    return True


def _alike(arrays: Sequence[Any], axis: int) -> bool:
    """Whether arrays differ in their length along one axis at most."""
    rank = arrays[0].ndim
    if rank < 2 or any(array.ndim != rank for array in arrays):
        return False
    others = [np.delete(array.shape, axis).tolist() for array in arrays]
    return all(shape == others[0] for shape in others)
