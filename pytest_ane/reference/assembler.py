"""From steps to a program of the interpreter's, for inputs of given shapes.

Every value is an array of places in the program's buffer. So an operation that only moves numbers
costs nothing: run on places, it says where its results stand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_ane.reference.halves import HalfWeight
from pytest_ane.reference.interpreter import LEAF, Kind, run
from pytest_ane.reference.segments import MOVES
from pytest_ane.reference.steps import Compute

Places = npt.NDArray[np.int64]
"""Where the numbers of a value stand in the buffer, in the value's shape."""
_LARGEST = 1 << 16
"""Numbers of a buffer: what is more is arithmetic, and no longer calls."""


class UnfitError(Exception):
    """An operation that the interpreter has no instruction for, on these shapes."""


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions, and where they find what they are given.

    Attributes:
        code: `[I, 7]`, as the interpreter runs it.
        index: places for gathering.
        buffer: constants at their places; a copy of it is what they run on.
        takes: places of the inputs, from and to.
        gives: places of the results from and to, and their shapes.
        weights: whose addresses stand in the code.
    """

    code: Places
    index: Places
    buffer: npt.NDArray[np.float32]
    takes: tuple[slice, ...]
    gives: tuple[tuple[slice, tuple[int, ...]], ...]
    weights: tuple[HalfWeight, ...]

    def run(self, inputs: Sequence[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
        """The results, views of one new array."""
        buffer = self.buffer.copy()
        for at, x in zip(self.takes, inputs, strict=True):
            buffer[at] = x.reshape(-1)
        run(self.code, self.index, buffer)
        return [buffer[at].reshape(shape) for at, shape in self.gives]


def assemble(
    names: Sequence[str],
    parts: Sequence[Compute],
    takes: Sequence[tuple[int, tuple[int, ...]]],
    gives: Sequence[int],
) -> Program | None:
    """The program of steps; None where there is none.

    Args:
        names: of the steps' operations, each in `ASSEMBLE` or `MOVES`.
        parts: the steps.
        takes: slots and shapes of what is given.
        gives: slots of what is wanted.
    """
    assembler = _Assembler()
    try:
        inputs = tuple(assembler.take(slot, shape) for slot, shape in takes)
        for name, part in zip(names, parts, strict=True):
            assembler.add(name, part)
        results = tuple(assembler.give(slot) for slot in gives)
    except UnfitError:
        return None
    return Program(
        np.array(assembler.code, np.int64).reshape(-1, 7),
        np.concatenate([np.empty(0, np.int64), *assembler.index]),
        np.concatenate(assembler.buffer),
        inputs,
        results,
        tuple(assembler.weights),
    )


class _Assembler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.index: list[Places] = []
        self.buffer: list[npt.NDArray[np.float32]] = []
        self.values: dict[int, Any] = {}
        self.weights: list[HalfWeight] = []
        self._size = self._indexed = 0

    def take(self, slot: int, shape: tuple[int, ...]) -> slice:
        """Room for an input."""
        self.values[slot] = self.place(np.zeros(shape, np.float32))
        return slice(self._size - math.prod(shape), self._size)

    def give(self, slot: int) -> tuple[slice, tuple[int, ...]]:
        """A result in one piece."""
        places = self.values[slot]
        start = self._line(places)
        return slice(start, start + places.size), places.shape

    def add(self, name: str, part: Compute) -> None:
        """One step."""
        if name in MOVES:
            part.run(self.values, frozenset())  # type: ignore[arg-type] # by slot, like a list
            for slot, _ in part.outputs:
                self.values[slot] = self.values[slot].astype(np.int64)
            return
        ((slot, _),) = part.outputs
        self.values[slot] = ASSEMBLE[name](self, _Operands(self, part))
        if part.rounds:
            self.code[-1][-1] = 1

    def place(self, numbers: Any) -> Places:
        """Numbers at new places: constants, or room."""
        array = np.asarray(numbers)
        if array.dtype.kind != "f" and not isinstance(numbers, int | float):
            raise UnfitError
        start, self._size = self._size, self._size + array.size
        if self._size > _LARGEST:
            raise UnfitError
        self.buffer.append(array.astype(np.float32).reshape(-1))
        return np.arange(start, self._size).reshape(array.shape)

    def emit(self, kind: Kind, shape: tuple[int, ...], a: int, b: int = 0, k: int = 0) -> Places:
        """An instruction that writes new numbers."""
        places = self.place(np.zeros(shape, np.float32))
        self.code.append([kind, int(places.flat[0]), places.size, a, b, k, 0])
        return places

    def binary(self, kind: Kind, x: Places, y: Places) -> Places:
        """Of two values, which broadcast."""
        shape = np.broadcast_shapes(x.shape, y.shape)
        a, b = (self._line(np.broadcast_to(one, shape)) for one in (x, y))
        return self.emit(kind, shape, a, b)

    def unary(self, kind: Kind, x: Places) -> Places:
        """Of one value."""
        return self.emit(kind, x.shape, self._line(x))

    def reduce(self, kind: Kind, x: Places, axes: Any, keep: bool) -> Places:
        """Over axes, all where none are given; of one row, for of others numpy's order differs.

        Raises:
            UnfitError: there are several rows.
        """
        over = range(x.ndim) if axes is None else [int(a) % x.ndim for a in np.atleast_1d(axes)]
        rest = [i for i in range(x.ndim) if i not in over]
        shape = tuple(1 if i in over else x.shape[i] for i in (range(x.ndim) if keep else rest))
        if math.prod(x.shape) == math.prod(shape):
            # A copy of its own, which may be rounded.
            return self.emit(Kind.GATHER, shape, self._gathered(x))
        if math.prod(shape) != 1:
            raise UnfitError
        start = self._line(np.moveaxis(x, over, range(-len(over), 0)))
        if kind is not Kind.SUM:
            return self.emit(kind, shape, start, x.size)
        return self._sum(start, x.size).reshape(shape)

    def softmax(self, x: Places, axis: int) -> Places:
        """Along the last axis."""
        if axis % x.ndim != x.ndim - 1:
            raise UnfitError
        return self.emit(Kind.SOFTMAX, x.shape, self._line(x), x.shape[-1])

    def product(self, weight: Any, x: Places, shape: tuple[int, ...]) -> Places:
        """A weight's product with the one vector that `x` is."""
        if not isinstance(weight, HalfWeight) or x.size != weight.patterns.shape[1]:
            raise UnfitError
        self.weights.append(weight)
        address = weight.patterns.ctypes.data
        return self.emit(Kind.PRODUCT, shape, self._line(x), address, x.size)

    def _sum(self, start: int, count: int) -> Places:
        """By halves of whole eights, as numpy sums what is in one piece."""
        if count <= LEAF:
            return self.emit(Kind.SUM, (1,), start, count)
        half = count // 2 - count // 2 % 8
        return self.binary(Kind.ADD, self._sum(start, half), self._sum(start + half, count - half))

    def _line(self, places: Places) -> int:
        """Where a value stands in one piece, row by row: gathered first, if it does not."""
        flat = np.ascontiguousarray(places).reshape(-1)
        if not flat.size:
            raise UnfitError
        if np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)):
            return int(flat[0])
        return int(self.emit(Kind.GATHER, flat.shape, self._gathered(flat))[0])

    def _gathered(self, places: Places) -> int:
        """Where a value's places stand in the index."""
        at, self._indexed = self._indexed, self._indexed + places.size
        self.index.append(np.ascontiguousarray(places).reshape(-1))
        return at


class _Operands:
    """What an operation is given: values by place, and constants."""

    def __init__(self, assembler: _Assembler, part: Compute) -> None:
        self._assembler, self._slots = assembler, dict(part.inputs)
        self._constants = dict(part.compute.keywords)  # type: ignore[attr-defined]
        self.pointwise = part.joins is not None

    def __getitem__(self, key: str) -> Places:
        """A value's places; a constant's are made."""
        if isinstance(slot := self._slots.get(key), int):
            places: Places = self._assembler.values[slot]
            return places
        return self._assembler.place(self._constants[key])

    def constant(self, key: str, default: Any = None) -> Any:
        """A parameter that is known.

        Raises:
            UnfitError: it is computed.
        """
        if key in self._slots:
            raise UnfitError
        return self._constants.get(key, default)


_Emit: TypeAlias = Callable[[_Assembler, _Operands], Places]


def _binary(kind: Kind) -> _Emit:
    return lambda to, given: to.binary(kind, given["x"], given["y"])


def _unary(kind: Kind) -> _Emit:
    return lambda to, given: to.unary(kind, given["x"])


def _reduction(kind: Kind) -> _Emit:
    return lambda to, given: to.reduce(
        kind, given["x"], given.constant("axes"), bool(given.constant("keep_dims", False))
    )


def _mean(to: _Assembler, given: _Operands) -> Places:
    total = _reduction(Kind.SUM)(to, given)
    return to.binary(Kind.DIV, total, to.place(float(given["x"].size // total.size)))


def _shifted(to: _Assembler, given: _Operands, epsilon: float) -> Places:
    return to.binary(Kind.ADD, given["x"], to.place(float(given.constant("epsilon", epsilon))))


def _inverse(to: _Assembler, given: _Operands) -> Places:
    return to.binary(Kind.DIV, to.place(1.0), _shifted(to, given, 1e-4))


def _rsqrt(to: _Assembler, given: _Operands) -> Places:
    root = to.unary(Kind.SQRT, _shifted(to, given, 1e-12))
    return to.binary(Kind.DIV, to.place(1.0), root)


def _softmax(to: _Assembler, given: _Operands) -> Places:
    return to.softmax(given["x"], int(given.constant("axis", -1)))


def _linear(to: _Assembler, given: _Operands) -> Places:
    x, weight = given["x"], given.constant("weight")
    if given.constant("bias") is not None:
        raise UnfitError
    return to.product(weight, x, (*x.shape[:-1], weight.shape[0]))


def _conv(to: _Assembler, given: _Operands) -> Places:
    """With a kernel of one element, which meets one."""
    x, weight = given["x"], given.constant("weight")
    if given.constant("bias") is not None or not given.pointwise:
        raise UnfitError
    return to.product(weight, x, (x.shape[0], weight.shape[0], *x.shape[2:]))


def _clip(to: _Assembler, given: _Operands) -> Places:
    low, high = (to.place(float(given.constant(key))) for key in ("alpha", "beta"))
    return to.binary(Kind.MIN, to.binary(Kind.MAX, given["x"], low), high)


ASSEMBLE: Mapping[str, _Emit] = {
    "abs": _unary(Kind.ABS),
    "add": _binary(Kind.ADD),
    "clip": _clip,
    "conv": _conv,
    "inverse": _inverse,
    "linear": _linear,
    "maximum": _binary(Kind.MAX),
    "minimum": _binary(Kind.MIN),
    "mul": _binary(Kind.MUL),
    "real_div": _binary(Kind.DIV),
    "reduce_max": _reduction(Kind.ROW_MAX),
    "reduce_mean": _mean,
    "reduce_min": _reduction(Kind.ROW_MIN),
    "reduce_sum": _reduction(Kind.SUM),
    "rsqrt": _rsqrt,
    "silu": _unary(Kind.SILU),
    "softmax": _softmax,
    "sqrt": _unary(Kind.SQRT),
    "sub": _binary(Kind.SUB),
}
"""Instructions of operations as `reference.ops` has them, parameters and defaults alike."""
