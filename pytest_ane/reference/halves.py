"""Weights held as the fp16 numbers that they consist of: half the bytes to stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.mil.records import DType, Operation, TensorType
from pytest_ane.reference.dtypes import round_with
from pytest_ane.reference.weights import SMALLEST, StreamedWeight, decoded_bytes

Array = npt.NDArray[Any]

_FEW = 8
"""Columns up to which products while a weight is read beat widening it for a matrix product."""
_PATIENCE = 1 << 28
"""Numbers that numpy widens in the time that loading the kernels takes."""


@dataclass(frozen=True, eq=False)
class HalfWeight(StreamedWeight):
    """A weight `[O, ...]` of fp16 numbers.

    Attributes:
        patterns: their bits `[O, K]`.
    """

    patterns: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, numbers: npt.NDArray[np.float16]) -> HalfWeight:
        """The weight of `numbers [O, ...]`."""
        patterns = np.require(numbers, requirements=("C", "A")).view(np.uint16)
        patterns = patterns.reshape(len(numbers), -1)

        def rows(start: int, stop: int, out: Array) -> Array:
            _widen(patterns[start:stop].reshape(-1), out.reshape(-1))
            return out

        return cls(numbers.shape, np.float32, rows, patterns)

    def product(self, columns: Array) -> Array:
        """`weight columns` as float32: `[O, K]` and `[N, K, P]` give `[N, O, P]`."""
        count, width, positions = columns.shape
        if count * positions > _FEW or (compiled := kernels()) is None:
            return super().product(columns)
        vectors = np.ascontiguousarray(columns.swapaxes(1, 2), np.float32).reshape(-1, width)
        found = np.empty((len(self.patterns), len(vectors)), np.float32)
        compiled.multiply(self.patterns, vectors, found)
        return found.reshape(-1, count, positions).swapaxes(0, 1)


def is_half(op: Operation) -> bool:
    """Whether an operation's result is a weight of fp16 numbers that is large enough to matter."""
    kind = op.outputs[0].type
    is_fp16 = isinstance(kind, TensorType) and kind.dtype is DType.FP16
    return is_fp16 and decoded_bytes(op, np.float16) >= SMALLEST


@cache
def kernels() -> Any:
    """The compiled kernels, which also round from then on; None if the processor has no fp16."""
    from pytest_ane.reference import kernels

    if not kernels.available():
        return None
    round_with(kernels)
    return kernels


class _Numpy:
    """Stands for the kernels as long as loading them would take longer than it saves."""

    widened = 0


def _widen(patterns: npt.NDArray[np.uint16], out: npt.NDArray[np.float32]) -> None:
    """fp16 numbers as float32 ones."""
    wanted = kernels.cache_info().currsize or _Numpy.widened > _PATIENCE
    if wanted and (compiled := kernels()) is not None:
        compiled.widen(patterns, out)
    else:
        _Numpy.widened += patterns.size
        np.copyto(out, patterns.view(np.float16))
