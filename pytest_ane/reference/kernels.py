"""Compiled arithmetic on fp16 numbers: rounding to them, and products with weights held in them.

Processors turn fp16 numbers into float32 ones and back a vector at a time, which numpy has no way
to ask for. numba takes half a second to begin, so this is imported when positions come singly.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.ufunc.ufuncbuilder import UFuncBuilder

F = TypeVar("F", bound=Callable[..., Any])
Halves = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


def available() -> bool:
    """Whether this processor turns fp16 numbers into float32 ones and back."""
    features = llvm.get_host_cpu_features()
    return platform.machine() in ("arm64", "aarch64") or bool(features.get("f16c"))


def _kept(build: Callable[[bool], Any]) -> Any:
    """What `build` compiles, on disk for later processes where any folder takes it."""
    try:
        return build(True)
    # An installation that cannot be written, and no home folder: usual in containers.
    except RuntimeError:
        return build(False)


def _compiled(*arguments: Any, **options: Any) -> Callable[[F], F]:
    """Compile for these types of arguments."""

    def decorate(function: F) -> F:
        kind = types.void(*arguments)
        return cast(
            F,
            _kept(lambda cache: numba.njit(kind, cache=cache, nogil=True, **options)(function)),
        )

    return decorate


def _widening(context: Any, pattern: Any) -> Any:
    """The number of a bit pattern of fp16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


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


_widened: Any = intrinsic(_widening)
_rounded: Any = intrinsic(_rounding)


def _ufunc(function: F) -> F:
    """A ufunc of float32, as `numba.vectorize` makes one; that one's own calls cost 1 us more."""

    def build(cache: bool) -> Any:
        builder = cast(Any, UFuncBuilder)(function, cache=cache)
        builder.add(types.float32(*[types.float32] * len(signature(function).parameters)))
        return builder.build_ufunc()

    return cast(F, _kept(build))


@_ufunc
def rounded(x: Any) -> Any:
    """The nearest fp16 number of each float32 one, ties to even; overflow gives infinity."""
    return _rounded(x)


@_ufunc
def add(x: Any, y: Any) -> Any:
    """The sum, rounded."""
    return _rounded(x + y)


@_ufunc
def mul(x: Any, y: Any) -> Any:
    """The product, rounded."""
    return _rounded(x * y)


_MATRIX = types.Array(types.uint16, 2, "C", readonly=True)
_ROWS = types.Array(types.float32, 2, "C", readonly=True)
_LINE = types.Array(types.uint16, 1, "C", readonly=True)


# Sums in any order, or they could not be taken a vector at a time; NaN and infinity stay.
@_compiled(_MATRIX, _ROWS, types.float32[:, ::1], fastmath={"reassoc", "contract"})
def multiply(weight: Halves, vectors: Floats, out: Floats) -> None:
    """`out [O, P] = weight [O, K] vectors^T [K, P]`: each row is read once, and widened once."""
    row = np.empty(weight.shape[1], np.float32)
    for o in range(weight.shape[0]):
        if len(vectors) == 1:
            total = np.float32(0)
            for k in range(len(row)):
                total += _widened(weight[o, k]) * vectors[0, k]
            out[o, 0] = total
            continue
        for k in range(len(row)):
            row[k] = _widened(weight[o, k])
        for p in range(len(vectors)):
            total = np.float32(0)
            for k in range(len(row)):
                total += row[k] * vectors[p, k]
            out[o, p] = total


_NUMBERS = types.Array(types.float32, 1, "C", readonly=True)


@_compiled(_ROWS, _NUMBERS, _NUMBERS, _NUMBERS, types.float32[:, ::1])
def overwrite(cache: Floats, kept: Floats, new: Floats, at: Floats, out: Floats) -> None:
    """`out [R, S] = cache [R, S] kept [S] + new [R] at [S]`, the products and the sum rounded."""
    for r in range(len(cache)):
        for s in range(len(kept)):
            out[r, s] = _rounded(_rounded(cache[r, s] * kept[s]) + _rounded(new[r] * at[s]))


@_compiled(_LINE, types.float32[::1])
def widen(patterns: Halves, out: Floats) -> None:
    """The numbers of bit patterns of fp16."""
    for i in range(len(patterns)):
        out[i] = _widened(patterns[i])
