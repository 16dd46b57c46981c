"""Shapes without arithmetic: of inputs at a T, and of every value of a program.

The program runs on zeros, with one number in place of each weight and shapes in place of matrix
products, so that neither bytes nor arithmetic take time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._steps import Compute
from pytest_ane.mlprogram.executor.budget import Meter
from pytest_ane.mlprogram.executor.dtypes import carried
from pytest_ane.mlprogram.executor.ops.conv import conv as convolve
from pytest_ane.mlprogram.executor.ops.linear import matmul as multiply
from pytest_ane.mlprogram.executor.session import Session
from pytest_ane.mlprogram.model import read_model
from pytest_ane.mlprogram.records import Blob, Feature, Function, MLModel, Operation, TensorType

Shape = tuple[int, ...]
Parameters = Mapping[str, Any]
"""Arrays and constants of one call by MIL's names."""


def input_shapes(model: MLModel, tokens: int) -> tuple[dict[str, Shape], bool]:
    """Shapes of all inputs by name, with `tokens` along flexible axes; whether there is one."""
    named = ((each.name, each.type) for each in model.main.inputs)
    kinds = {name: kind for name, kind in named if isinstance(kind, TensorType)}
    shapes = {name: _shape(model, name, kind, tokens) for name, kind in kinds.items()}
    return shapes, any(None in kind.shape for kind in kinds.values())


def largest_tokens(package: Path, most: int, function: str | None = None) -> int:
    """The largest T, up to `most`, that every flexible axis of a function takes; 1 without any."""
    return token_range(read_model(package, weights=False, function=function), most)[1]


def token_range(model: MLModel, most: int) -> tuple[int, int]:
    """The least T that every flexible axis takes, and the greatest up to `most`; 1, 1 without any.

    An axis that starts beyond `most` has its least T for both.
    """
    extents = [each for feature in model.inputs for each in feature.extents]
    varying = [(low, most if high is None else high) for low, high in extents if low != high]
    least = max([1, *(low for low, _ in varying)])
    return least, max(least, min([most, *(high for _, high in varying)])) if varying else 1


def _shape(model: MLModel, name: str, kind: TensorType, tokens: int) -> Shape:
    if None not in kind.shape:
        return tuple(int(d or 0) for d in kind.shape)
    feature = next((each for each in model.inputs if each.name == name), None)
    if feature is None or len(feature.shape) != len(kind.shape):
        raise ExecutionError(f"{model.path}: input {name!r} has the open shape {kind}.")
    if feature.enumerated:
        return _enumerated(model, feature, tokens)
    for low, high in feature.extents:
        if low != high and not (low <= tokens and (high is None or tokens <= high)):
            takes = f"input {name!r} takes {low} to {'any' if high is None else high}"
            raise ExecutionError(f"{model.path}: T is {tokens}, and {takes}.")
    return tuple(low if low == high else tokens for low, high in feature.extents)


def _enumerated(model: MLModel, feature: Feature, tokens: int) -> Shape:
    """The listed shape whose varying axes all are `tokens`."""
    varies = [len(set(axis)) > 1 for axis in zip(*feature.enumerated, strict=True)]
    for shape in feature.enumerated:
        if all(d == tokens for d, free in zip(shape, varies, strict=True) if free):
            return shape
    shapes = ", ".join(map(str, map(list, feature.enumerated)))
    takes = f"input {feature.name!r} takes the shapes {shapes}"
    raise ExecutionError(f"{model.path}: T is {tokens}, and {takes}.")


def zeros(shape: Shape, dtype: Any = np.float32) -> Array:
    """Zeros that take the memory of one; read-only."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _conv(x: Any, weight: Any, bias: Any = None, groups: int = 1, **spatial: Any) -> Array:
    """The extents are those of one channel's convolution with one kernel."""
    one = convolve(zeros((1, 1, *x.shape[2:])), zeros((1, 1, *weight.shape[2:])), **spatial)
    return zeros((len(x), weight.shape[0], *one.shape[2:]))


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """The extents are those of a product that sums over one element only."""
    x = x[..., :1, :] if transpose_x and x.ndim > 1 else x[..., :1]
    y = y[..., :1] if transpose_y and y.ndim > 1 else y[..., :1, :] if y.ndim > 1 else y[:1]
    return zeros(np.shape(multiply(x, y, transpose_x, transpose_y)))


STAND_INS: Mapping[str, Callable[..., Array]] = {
    "conv": _conv,
    "linear": lambda x, weight, bias=None: zeros((*x.shape[:-1], weight.shape[0])),
    "matmul": _matmul,
}
"""By operation; they take what the operation takes."""


class ShapeRun:
    """A run of a model's main function on stand-ins."""

    def __init__(self, model: MLModel, shapes: Mapping[str, Shape]) -> None:
        self._function = model.main
        for op in self._function.block.operations:
            if op.blocks:
                says = f"{op.name!r} is a {op.op}: what it costs depends on values"
                raise ExecutionError(f"{model.path}: {says}, not on the program alone.")
        self._session = Session(model, "float32", overrides=_stand_ins(self._function))
        self._values = list(self._session.template)
        try:
            states = self._session.make_state()
        except (MemoryError, ValueError) as error:
            raise ExecutionError(f"{model.path}: its states are too large ({error}).") from None
        for named in self._function.inputs:
            self._values[self._session.slots[named.name]] = (
                zeros(shapes[named.name], carried(named.type.dtype, "float32"))
                if isinstance(named.type, TensorType)
                else states[named.name]
            )
        # Nothing is freed: arrays are small or take no memory, and outputs are needed later.
        self._keep = frozenset(range(len(self._values)))

    def operations(self) -> Iterator[tuple[Operation, Parameters | None]]:
        """Every operation in order with what it computes from, and None for one of constants.

        Its results have shapes once it is yielded.
        """
        steps = iter(self._session.block.steps)
        budget = Meter(self._session.budget, lambda: self._values)
        for op in self._function.block.operations:
            if op.outputs and op.outputs[0].name not in self._session.slots:
                yield op, None
                continue
            step = next(steps)
            assert isinstance(step, Compute)
            parameters = step.compute.keywords | step.arguments(self._values)
            if (stand_in := STAND_INS.get(op.op)) is not None:
                step = replace(step, compute=partial(stand_in, **step.compute.keywords))
            with np.errstate(all="ignore"):
                # What stands in for a product takes no memory.
                step.run(self._values, self._keep, None if stand_in else budget)
            yield op, parameters

    def __contains__(self, name: str) -> bool:
        """Whether a value is computed when the program runs."""
        return name in self._session.slots

    def shape(self, name: str) -> Shape:
        """Of a value that is in the run, once it is computed."""
        return np.shape(self._values[self._session.slots[name]])


def value_shapes(model: MLModel, tokens: int = 1) -> dict[str, Shape]:
    """Shapes of the main function's values by name, those of constants left out."""
    run = ShapeRun(model, input_shapes(model, tokens)[0])
    names = [named.name for named in model.main.inputs]
    for op, _ in run.operations():
        names += [named.name for named in op.outputs]
    return {name: run.shape(name) for name in names if name in run}


def _stand_ins(function: Function) -> dict[Operation, Array]:
    """Zeros for all that lies in the weights file or is decompressed."""
    arrays = {}
    for op in function.block.operations:
        kind = op.outputs[0].type if op.outputs else None
        value = op.attributes.get("val")
        stored = op.op == "const" and value is not None and isinstance(value.data, Blob)
        if isinstance(kind, TensorType) and (stored or op.op.startswith("constexpr_")):
            shape = tuple(int(d or 0) for d in kind.shape)
            arrays[op] = zeros(shape, carried(kind.dtype, "float32"))
    return arrays
