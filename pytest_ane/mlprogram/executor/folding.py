"""Constants by name: read, decoded or left to be streamed; and whatever follows from them alone."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._registry import FAILURES, lookup
from pytest_ane.mlprogram.executor.budget import Budget, Meter, current_budget
from pytest_ane.mlprogram.executor.dtypes import Precision, carried, converter, itemsize
from pytest_ane.mlprogram.executor.weights import (
    LARGE,
    HalfWeight,
    StreamedWeight,
    decoded_bytes,
    fits_half,
    palettized,
    plain,
)
from pytest_ane.mlprogram.records import (
    Argument,
    Blob,
    DType,
    MLModel,
    Operation,
    Ref,
    TensorType,
    Value,
)

SEQUENCES = frozenset(
    ("values", "loop_vars", "elem_shape", "ref_tensors", "begins", "ends", "end_masks")
)
"""Parameters that are lists of values, however many there are."""
_NEVER_FOLDED = frozenset(
    ("make_list", "random_bernoulli", "random_categorical", "random_normal", "random_uniform",
     "read_state", "write_state")
)  # fmt: skip
"""Operations that are run every time, constant or not."""
_HIDDEN: Any = object()
"""Stands for a name that a nested block uses for something that is not constant."""
_LARGEST_FOLD = 1 << 20
"""Elements of a result up to which it is worth keeping beside the constants it follows from."""
_WEIGHTS = frozenset(("const", "constexpr_lut_to_dense"))


class Constants:
    """The constants of a function, by name, nested scopes included.

    Args:
        model: whose files hold the weights.
        opset: the function's.
        precision: in which constants are carried.
        memory_budget: bytes of decoded weights to hold; None for all.
        overrides: values that take the place of what some operations yield, such as another weight.
        factors: names that are only ever weights of matrix products, and so may be held in fp16.
        budget: memory and time that computing constants may take.

    Attributes:
        values: arrays, Python numbers, texts, or weights to be streamed.
    """

    def __init__(
        self,
        model: MLModel,
        opset: str,
        precision: Precision,
        memory_budget: int | None,
        overrides: Mapping[Operation, Any] | None = None,
        factors: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        self.values: ChainMap[str, Any] = ChainMap()
        self._stored: ChainMap[str, Value] = ChainMap()
        self._model, self._opset = model, opset
        self._precision, self._budget = precision, memory_budget
        self._overrides = overrides or {}
        budget = current_budget() if budget is None else budget
        self._meter = Meter(budget, lambda: self.values.values())
        self._factors = () if memory_budget is None or precision == "float64" else factors

    def __contains__(self, argument: Argument) -> bool:
        return (
            not isinstance(argument, Ref) or self.values.get(argument.name, _HIDDEN) is not _HIDDEN
        )

    def hide(self, names: Iterable[str]) -> None:
        """Take names for computed values from here on, whatever they are in outer scopes."""
        for name in names:
            if name in self.values:
                self.values[name] = _HIDDEN

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Scope for a nested block's names."""
        outer = self.values, self._stored
        self.values, self._stored = self.values.new_child(), self._stored.new_child()
        try:
            yield
        finally:
            self.values, self._stored = outer

    def fold(self, op: Operation) -> bool:
        """Compute an operation now if it is constant; whether it was."""
        if op in self._overrides:
            self.values[op.name] = _read_only(self._overrides[op])
            return True
        if op.op == "const":
            self._stored[op.name] = op.attributes["val"]
        if op.op in _WEIGHTS and self._take_weight(op):
            return True
        if op.op == "const":
            value = op.attributes["val"]
            self.values[op.name] = _read_only(constant(self._model, value, self._precision))
            return True
        if not op.op.startswith("constexpr_") and not (self._is_constant(op) and _is_small(op)):
            return False
        self._compute(op)
        return True

    def value(self, argument: Argument) -> Any:
        """A constant argument's value, which may be a weight to be streamed."""
        if isinstance(argument, Ref):
            return self.values[argument.name]
        return constant(self._model, argument, self._precision)

    def parameter(self, key: str, arguments: Sequence[Argument], *, stream: bool = False) -> Any:
        """A parameter of constants alone; weights are decoded unless `stream`."""
        values = tuple(self.value(a) if stream else dense(self.value(a)) for a in arguments)
        return values if len(values) > 1 or key in SEQUENCES else values[0]

    def _compute(self, op: Operation) -> None:
        """Compute a constant operation's results."""
        implementation = lookup(op.op, self._opset, f"{self._model.path}: {op.name}: ")
        with np.errstate(all="ignore"):
            try:
                parameters = self.parameters(op)
                size = itemsize((out.type for out in op.outputs), self._precision)
                self._meter.admit(
                    f"{self._model.path}: {op.op} {op.name!r}", op.op, parameters, size
                )
                result = implementation.compute(**parameters)
            except FAILURES as error:
                why = str(error).rstrip(".")
                raise ExecutionError(
                    f"{self._model.path}: {op.op} {op.name!r} cannot be computed: {why}."
                ) from error
            results = result if isinstance(result, tuple) else (result,)
            for out, array in zip(op.outputs, results, strict=True):
                convert = converter(out.type, self._precision, implementation.moves)
                self.values[out.name] = value = _read_only(convert(array))
                self._meter.add([value], [(0, out.type)])

    def _take_weight(self, op: Operation) -> bool:
        """Take a weight as it is stored, and decode it unless it exceeds the memory budget."""
        wide = carried(DType.FP16, self._precision)
        as_half = op.name in self._factors and fits_half(op)
        dtype = np.float16 if as_half else wide
        is_held = self._spend(decoded_bytes(op, dtype))
        if is_held and op.op == "const" and not as_half:
            return False
        weight = self._streamed(op, dtype if is_held else wide)
        if weight is not None and is_held:
            decoded = _read_only(np.asarray(weight))
            self.values[op.name] = HalfWeight.of(decoded) if as_half else decoded
        elif weight is not None:
            self.values[op.name] = weight
        return weight is not None

    def _streamed(self, op: Operation, dtype: Any) -> StreamedWeight | None:
        """A weight as it is stored; None where it is so that its rows cannot be decoded alone."""
        if op.op == "const":
            return plain(self._model, op.attributes["val"], dtype)
        lut = self.parameters(op, ("lut",))["lut"]
        return palettized(self._model, self._stored_value(op, "indices"), lut, dtype)

    def _spend(self, size: int) -> bool:
        """Whether a weight of so many bytes is held; if so, it is taken off the budget."""
        if self._budget is None or size < LARGE:
            return True
        is_held = size <= self._budget
        self._budget -= size if is_held else 0
        return is_held

    def _stored_value(self, op: Operation, key: str) -> Value | None:
        """A parameter as it is stored, which may be a constant by name."""
        argument: Argument | None = op.attributes.get(key)
        if argument is None and len(op.inputs.get(key, ())) == 1:
            argument = op.inputs[key][0]
        return self._stored.get(argument.name) if isinstance(argument, Ref) else argument

    def _is_constant(self, op: Operation) -> bool:
        if op.op in _NEVER_FOLDED or op.blocks:
            return False
        return all(a in self for arguments in op.inputs.values() for a in arguments)

    def parameters(self, op: Operation, only: Sequence[str] = ()) -> dict[str, Any]:
        """All parameters of a constant operation, or the constant ones of those named."""
        keys = set(only) or {*op.inputs, *op.attributes} - {"name"}
        inputs = {k: a for k, a in op.inputs.items() if k in keys}
        if only:
            inputs = {k: a for k, a in inputs.items() if all(argument in self for argument in a)}
        parameters = {k: self.parameter(k, a) for k, a in inputs.items()}
        if op.op.startswith("constexpr_"):
            for key in keys & set(op.attributes):
                parameters[key] = constant(self._model, op.attributes[key], self._precision)
        return parameters


def constant(model: MLModel, value: Value, precision: Precision = "as-typed") -> Any:
    """A constant's data: scalars as Python numbers, fp16 as float32, weights decoded."""
    if not isinstance(value.type, TensorType) or isinstance(value.data, (str, tuple, dict)):
        return value.data
    if not isinstance(value.data, Blob) and value.type.shape == ():
        return np.asarray(value.data).item()
    return load(model, value).astype(carried(value.type.dtype, precision), copy=False)


def dense(value: Any) -> Any:
    """A streamed weight decoded as a whole; anything else as it is."""
    return np.asarray(value) if isinstance(value, StreamedWeight) else value


def _read_only(value: Any) -> Any:
    """A constant that no one can write to: results may be views of it."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.view()
        value.flags.writeable = False
    return value


def _is_small(op: Operation) -> bool:
    return all(
        isinstance(out.type, TensorType)
        and all(d is not None for d in out.type.shape)
        and math.prod(d or 0 for d in out.type.shape) <= _LARGEST_FOLD
        for out in op.outputs
    )
