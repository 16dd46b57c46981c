"""Decompression: weights as the executor decodes them, by rows where that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pytest_ane.mlprogram.blob import load, packed
from pytest_ane.mlprogram.census import DEEPEST, ProgramWeight, constants_of
from pytest_ane.mlprogram.errors import ProgramError
from pytest_ane.mlprogram.executor.folding import Constants
from pytest_ane.mlprogram.executor.ops.constexpr import constexpr_blockwise_shift_scale
from pytest_ane.mlprogram.executor.weights import Packed, StreamedWeight, decode
from pytest_ane.mlprogram.records import DType, MLModel, Operation, Ref, TensorType


def decompress(model: MLModel, weight: ProgramWeight) -> Any:
    """A weight's values: an array, or a `StreamedWeight` that decodes rows when they are read.

    Plain weights, palettes and integers under scales are decoded by rows.

    Raises:
        ProgramError: the weight is not where its package says, or of another shape.
        ExecutionError: it cannot be decoded.
    """
    values = _scaled(model, weight)
    if values is None:
        constants = Constants(model, weight.function.opset, "as-typed", memory_budget=0)
        for op in expansion(weight, model.path):
            constants.fold(op)
        values = constants.values[weight.operation.name]
    if tuple(values.shape) != weight.weight.shape:
        raise ProgramError(
            f"{model.path}: {weight.operation.name} is of shape {list(weight.weight.shape)}, but "
            f"what is stored of it is of shape {list(values.shape)}."
        )
    return values


def _scaled(model: MLModel, weight: ProgramWeight) -> StreamedWeight | None:
    """Integers with one scale, or one for each row; None for any other weight.

    They are decoded as indices into tables of what every integer stands for.
    """
    op, kind = weight.operation, weight.operation.outputs[0].type
    stored = constants_of(op, weight.producers)
    if op.op != "constexpr_blockwise_shift_scale" or not {"data", "scale"} <= stored.keys():
        return None
    data, scale = stored["data"].type, load(model, stored["scale"])
    if not isinstance(data, TensorType) or not isinstance(kind, TensorType):
        return None
    numbers, shape = _NUMBERS.get(data.dtype), tuple(int(d or 0) for d in data.shape)
    by_rows = scale.ndim == len(shape) and scale.size == scale.shape[0] in (1, shape[0])
    if numbers is None or kind.dtype is not DType.FP16 or not by_rows:
        return None
    offset = load(model, stored["offset"]).reshape(-1, 1) if "offset" in stored else None
    wide = scale.astype(np.float32).reshape(-1, 1)
    grid = np.broadcast_to(numbers, (len(wide), len(numbers)))
    with np.errstate(over="ignore"):
        tables = constexpr_blockwise_shift_scale(grid, wide, offset).astype(np.float16)
    indices = Packed(packed(model, stored["data"]), len(numbers).bit_length() - 1, shape)
    flat = tables.astype(np.float32)

    def rows(start: int, stop: int, out: Any) -> Any:
        return decode(indices, flat, start=start, stop=stop, out=out)

    return StreamedWeight(shape, np.float32, rows)


_NUMBERS = {
    DType.UINT8: np.arange(256),
    DType.INT8: np.arange(256, dtype=np.uint8).view(np.int8),
    DType.UINT4: np.arange(16),
    DType.INT4: (np.arange(16) ^ 8) - 8,
}
"""What the bits of a stored integer stand for."""


def expansion(weight: ProgramWeight, path: str) -> Iterable[Operation]:
    """A weight's operation and all that it is computed from, in the order of computation."""
    levels = [{weight.operation: None}]
    while levels[-1]:
        if len(levels) > DEEPEST + 1:
            raise ProgramError(
                f"{path}: {weight.weight.name} is expanded by more than {DEEPEST} operations, one "
                "after another."
            )
        arguments = (a for op in levels[-1] for group in op.inputs.values() for a in group)
        names = (a.name for a in arguments if isinstance(a, Ref))
        levels.append({weight.producers[n]: None for n in names if n in weight.producers})
    return dict.fromkeys(op for level in reversed(levels) for op in level)
