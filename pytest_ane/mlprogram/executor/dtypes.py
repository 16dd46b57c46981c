"""The numeric policy: how values of each type are carried, and where they are rounded.

Values of type fp16 are carried as float32 arrays that hold only numbers fp16 can represent. An
operation computes in float32, and its result is rounded to fp16 where its type says fp16; what
exceeds fp16's range becomes infinite, as it would in fp16. Integers and booleans keep their types.
Under `precision="float32"` nothing is rounded: an upper bound on what better arithmetic could give.
`precision="float64"` carries all floating values as float64, for golden outputs.
This is not the arithmetic of the ANE, which adds in fixed point and looks functions up in tables;
a session with `arithmetic="ane"` computes in that, where it is known (see `executor.ane`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pytest_ane.mlprogram.arrays import Array, FloatArray
from pytest_ane.mlprogram.records import DType, TensorType, ValueType
from pytest_ane.mlprogram.values import NUMPY

Precision = Literal["as-typed", "float32", "float64"]

FLOATS = frozenset((DType.FP16, DType.FP32, DType.FP64, DType.BF16))
_CARRIED: dict[DType, Any] = NUMPY | {DType.FP16: np.float32, DType.BF16: np.float32}

_LOADING = 0.5
"""Seconds to load the compiled kernels."""
_ROUNDING, _WIDENING = 7e-9, 3e-9
"""Seconds that numpy takes to round a number to fp16, and to turn an fp16 one into float32."""
_kernels: Any = None
_is_loaded = False
_numpy_seconds = 0.0
"""Estimate of the time that numpy has spent without the kernels."""


def carried(dtype: DType, precision: Precision = "as-typed") -> Any:
    """The numpy type that values of a MIL type are carried in."""
    if precision == "float64" and dtype in FLOATS:
        return np.float64
    return _CARRIED[dtype]


def itemsize(kinds: Iterable[ValueType], precision: Precision) -> int:
    """Bytes of an element of the widest of some values, at least 4."""
    tensors = (k for k in kinds if isinstance(k, TensorType) and k.dtype is not DType.STRING)
    sizes: list[int] = [np.dtype(carried(k.dtype, precision)).itemsize for k in tensors]
    return max([4, *sizes])


def load_kernels() -> Any:
    """The compiled kernels; None on a processor without instructions for fp16."""
    global _kernels, _is_loaded
    if not _is_loaded:
        from pytest_ane.mlprogram.executor import _kernels as kernels

        _kernels, _is_loaded = kernels if kernels.available() else None, True
    return _kernels


def _kernels_if_worth(seconds: float) -> Any:
    """The kernels if they are loaded, or if numpy would have taken longer; else None."""
    global _numpy_seconds
    if not _is_loaded:
        _numpy_seconds += seconds
        if _numpy_seconds > _LOADING:
            load_kernels()
    return _kernels


def rounded(x: Any) -> FloatArray:
    """Nearest fp16 number (ties to even) of each value, as float32; overflow gives infinity.

    The kernels give what numpy's casts give, bit for bit. Callers have numpy's warnings off.
    """
    if isinstance(x, np.ndarray) and x.dtype.char == "f":
        kernels = _kernels or _kernels_if_worth(x.size * _ROUNDING)
        if kernels is not None:
            return np.asarray(kernels.rounded(x))
    return np.asarray(x).astype(np.float16).astype(np.float32)


def round_fp16(x: Any) -> FloatArray:
    """`rounded` for callers that have numpy's warnings on."""
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded(x)


def widen(patterns: npt.NDArray[np.uint16], out: FloatArray) -> None:
    """Write the numbers of fp16 bit patterns `[n]` to `out [n]`."""
    if (kernels := _kernels_if_worth(patterns.size * _WIDENING)) is not None:
        kernels.widen(patterns, out)
    else:
        np.copyto(out, patterns.view(np.float16))


def convert(array: Array, dtype: DType, precision: Precision) -> Array:
    """An array in the form that its type is carried in, rounded where policy says so.

    Callers have numpy's warnings off.
    """
    return np.asarray(converter(TensorType(dtype), precision, moves=False)(array))


@lru_cache(maxsize=1024)
def converter(kind: ValueType, precision: Precision, moves: bool) -> Callable[[Any], Any]:
    """`convert` for results of one type; lists, dictionaries, states and texts stay as they are.

    Where an operation only `moves` numbers of the type, nothing needs to be rounded.
    """
    if not isinstance(kind, TensorType) or kind.dtype is DType.STRING:
        return lambda result: result
    if kind.dtype is DType.FP16 and precision == "as-typed" and not moves:
        return rounded
    dtype = np.dtype(carried(kind.dtype, precision))
    return lambda result: np.asarray(result).astype(dtype, copy=False)
