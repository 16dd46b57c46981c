"""Compiled arithmetic on fp16 numbers: rounding to them, and products with weights held in them.

Processors turn fp16 numbers into float32 ones and back a vector at a time; numpy's casts take one
number at a time. Importing numba takes half a second, so `dtypes.load_kernels` does it where it
pays.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pytest_ane.mlprogram.arrays import FloatArray

F = TypeVar("F", bound=Callable[..., Any])
Patterns = npt.NDArray[np.uint16]
_vectorize: Any = numba.vectorize


def available() -> bool:
    """Whether this processor turns fp16 numbers into float32 ones and back."""
    features = llvm.get_host_cpu_features()
    return platform.machine() in ("arm64", "aarch64") or bool(features.get("f16c"))


def cached(build: Callable[[bool], Any]) -> Any:
    """Call `build(cache=True)`, which keeps compiled code on disk, or without where it cannot."""
    try:
        return build(True)
    # An installation that cannot be written, and no home folder: usual in containers.
    except RuntimeError:
        return build(False)


def compiled(*kinds: Any, **options: Any) -> Callable[[F], F]:
    """Compile a function for these types of arguments, to release the GIL while it runs.

    `kinds` are the types, or a list of them for each combination.
    """
    lists = kinds if isinstance(kinds[0], list) else [kinds]
    made = [types.void(*arguments) for arguments in lists]

    def decorate(function: F) -> F:
        jit = partial(numba.njit, made, nogil=True, **options)
        return cast(F, cached(lambda cache: jit(cache=cache)(function)))

    return decorate


def ufunc(kind: str) -> Callable[[Any], Any]:
    """Compile a function of numbers, such as `float32(float64)`, as numpy's own ufunc.

    numpy's own object: a call through numba's wrapper of it takes 1 us more.
    """
    return lambda function: cached(lambda cache: _vectorize([kind], cache=cache)(function)).ufunc


def _widening(context: Any, number: Any) -> Any:
    """A number as float32: from an fp16 pattern, or as it is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(number, types.Float):
            return arguments[0]
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(number), generate


def _rounding(context: Any, number: Any) -> Any:
    """The nearest fp16 number, ties to even; a NaN's first bits, as numpy's cast keeps them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        near = builder.fpext(builder.fptrunc(x, ir.HalfType()), ir.FloatType())
        integer = ir.IntType(32)
        bits = builder.and_(builder.bitcast(x, integer), ir.Constant(integer, 0xFFFFE000))
        fraction = builder.and_(bits, ir.Constant(integer, 0x7FFFFF))
        none = builder.icmp_unsigned("==", fraction, ir.Constant(integer, 0))
        some = builder.select(none, builder.or_(bits, ir.Constant(integer, 0x2000)), bits)
        is_nan = builder.fcmp_unordered("uno", x, x)
        return builder.select(is_nan, builder.bitcast(some, ir.FloatType()), near)

    return types.float32(types.float32), generate


widen_number: Any = intrinsic(_widening)
round_number: Any = intrinsic(_rounding)


@ufunc("float32(float32)")
def rounded(x: Any) -> Any:
    """The nearest fp16 number of each float32 one, ties to even; overflow gives infinity."""
    return round_number(x)


_MATRIX = types.Array(types.uint16, 2, "C", readonly=True)
_ROWS = types.Array(types.float32, 2, "C", readonly=True)
_LINE = types.Array(types.uint16, 1, "C", readonly=True)


# Sums in any order, or they could not be taken a vector at a time; NaN and infinity stay.
_ANY_ORDER = {"reassoc", "contract"}


@compiled(_MATRIX, _ROWS, types.float32[:, ::1], fastmath=_ANY_ORDER)
def multiply(weight: Patterns, vectors: FloatArray, out: FloatArray) -> None:
    """`out [P, O] = vectors [P, K] weight^T [K, O]`.

    In four streams: memory delivers a quarter more a second to four than to one.
    """
    quarter = weight.shape[0] // 4
    for p in range(len(vectors)):
        for o in range(quarter):
            a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for k in range(weight.shape[1]):
                x = vectors[p, k]
                a += widen_number(weight[o, k]) * x
                b += widen_number(weight[o + quarter, k]) * x
                c += widen_number(weight[o + 2 * quarter, k]) * x
                d += widen_number(weight[o + 3 * quarter, k]) * x
            out[p, o], out[p, o + quarter] = a, b
            out[p, o + 2 * quarter], out[p, o + 3 * quarter] = c, d
        for o in range(4 * quarter, weight.shape[0]):
            total = np.float32(0)
            for k in range(weight.shape[1]):
                total += widen_number(weight[o, k]) * vectors[p, k]
            out[p, o] = total


@compiled(_LINE, types.float32[::1])
def widen(patterns: Patterns, out: FloatArray) -> None:
    """The numbers of bit patterns of fp16."""
    for i in range(len(patterns)):
        out[i] = widen_number(patterns[i])
