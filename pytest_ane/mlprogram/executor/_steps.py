"""Prepared programs: operations bound to numbered slots, and how they run.

Whoever runs steps has numpy's warnings off: what overflows becomes infinite silently. Several
inputs run at once, every operation for all of them before the next one: a weight that is decoded in
every run is then decoded once, and multiplied with all their columns in one product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor._registry import FAILURES
from pytest_ane.mlprogram.executor.budget import Budget, Meter
from pytest_ane.mlprogram.executor.dtypes import Precision, converter
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.records import Operation, ValueType

Values = list[Any]
"""A value for each slot; None before it is computed and after its last use."""
Outputs = tuple[tuple[int, ValueType], ...]
"""Slots of results, and their types."""


Step: TypeAlias = "Compute | Cond | WhileLoop"
"""An operation, its parameters resolved to constants and slots.

`run(values, keep, meter)` takes inputs from their slots, puts results into theirs, and frees what
`keep` does not name. `meter` holds what is about to be computed against the budget; None where a
run with inputs of the same shapes has been within it.
"""


@dataclass(frozen=True)
class PreparedBlock:
    """A block: its steps, the slots of its inputs and of its results."""

    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def run(
        self, values: Values, keep: AbstractSet[int] = frozenset(), meter: Meter | None = None
    ) -> list[Any]:
        """Run all steps on `values`; the block's results."""
        for step in self.steps:
            step.run(values, keep, meter)
        return [values[slot] for slot in self.results]


@dataclass(frozen=True)
class Compute:
    """A call of an operation's function.

    Attributes:
        op: kind of the operation.
        what: file, kind and name of the operation, for messages.
        compute: the function, its constant parameters bound; takes the computed ones by name.
        inputs: names of the computed parameters with their slots, several for a list of values.
        converters: for each result, the function that brings it into the form of its type.
        last_use: slots that no later operation needs.
        itemsize: bytes of an element of the results.
        joins: axis along which several inputs may be joined and run as one; None for no such.
    """

    op: str
    what: str
    compute: partial[Any]
    inputs: tuple[tuple[str, int | tuple[int, ...]], ...]
    outputs: Outputs
    converters: tuple[Callable[[Any], Any], ...]
    last_use: tuple[int, ...]
    itemsize: int
    joins: int | None = None

    def run(self, values: Values, keep: AbstractSet[int], meter: Meter | None = None) -> None:
        """Compute, and round the results as their types say."""
        try:
            if meter is not None:
                parameters = {**self.compute.keywords, **self.arguments(values)}
                meter.admit(self.what, self.op, parameters, self.itemsize)
            result = self.compute(**self.arguments(values))
            if result is None:
                raise TypeError("its function returns nothing")
            results = result if isinstance(result, tuple) else (result,)
            made = zip(self.outputs, self.converters, results, strict=True)
            for (slot, _), convert, array in made:
                values[slot] = convert(array)
        except FAILURES as error:
            shapes = {k: getattr(v, "shape", None) for k, v in self.arguments(values).items()}
            raise ExecutionError(f"{self.what} fails on inputs {shapes}: {error}.") from error
        if meter is not None:
            meter.add(values[slot] for slot, _ in self.outputs)
        free(values, self.last_use, keep)

    def arguments(self, values: Values) -> dict[str, Any]:
        """What it computes from, by name; several values of one parameter are a tuple."""
        return {
            key: values[slot] if isinstance(slot, int) else tuple(values[s] for s in slot)
            for key, slot in self.inputs
        }


@dataclass(frozen=True)
class Cond:
    """`cond`: the first of two blocks where the predicate is true, else the second."""

    pred: int
    branches: tuple[PreparedBlock, PreparedBlock]
    outputs: Outputs
    precision: Precision
    last_use: tuple[int, ...]

    def run(self, values: Values, keep: AbstractSet[int], meter: Meter | None = None) -> None:
        """Run one of the blocks."""
        branch = self.branches[0 if np.all(values[self.pred]) else 1]
        _store(values, self.outputs, branch.run(values, keep, meter), self.precision)
        free(values, self.last_use, keep)


@dataclass(frozen=True)
class WhileLoop:
    """`while_loop`: a condition and a body, both of the loop's variables."""

    what: str
    initial: tuple[int, ...]
    condition: PreparedBlock
    body: PreparedBlock
    outputs: Outputs
    precision: Precision
    last_use: tuple[int, ...]

    def run(self, values: Values, keep: AbstractSet[int], meter: Meter | None = None) -> None:
        """Run the body as long as the condition is true."""
        _store(values, self.outputs, [values[slot] for slot in self.initial], self.precision)
        while True:
            variables = [values[slot] for slot, _ in self.outputs]
            _assign(values, self.condition.inputs, variables)
            if not np.all(self.condition.run(values, keep, meter)[0]):
                break
            if meter is not None:
                meter.turn(self.what)
            _assign(values, self.body.inputs, variables)
            _store(values, self.outputs, self.body.run(values, keep, meter), self.precision)
        free(values, self.last_use, keep)


_SHAPED = frozenset(
    ("a", "alpha", "attn_mask", "b", "beta", "bias", "boxes", "cond", "coordinates", "data",
     "gamma", "indices", "initial_c", "initial_h", "input", "key", "mean", "query", "ref_tensor",
     "ref_tensors", "roi", "scores", "transform_matrix", "update", "updates", "value", "values",
     "variance", "weight", "x", "y")
)  # fmt: skip
"""Parameters whose values do not decide a result's shape; their shapes may."""
_BY_VALUE = frozenset(
    ("list_gather", "list_length", "list_read", "list_scatter", "list_write", "make_list",
     "non_zero")
)  # fmt: skip
"""Operations of results whose size is decided by values, or by lists."""


def shapes_decide(step: Step) -> bool:
    """Whether the shapes of a step's inputs decide those of its results."""
    if not isinstance(step, Compute) or step.op in _BY_VALUE:
        return False
    return step.op == "slice_update" or all(key in _SHAPED for key, _ in step.inputs)


def free(values: Values, slots: Sequence[int], keep: AbstractSet[int]) -> None:
    """Drop the values of these slots, but for those in `keep`."""
    for slot in slots:
        if slot not in keep:
            values[slot] = None


def _store(values: Values, outputs: Outputs, results: Sequence[Any], precision: Precision) -> None:
    for (slot, kind), result in zip(outputs, results, strict=True):
        values[slot] = converter(kind, precision, moves=True)(result)


def _assign(values: Values, slots: Sequence[int], variables: Sequence[Any]) -> None:
    for slot, variable in zip(slots, variables, strict=True):
        values[slot] = variable


def run_all(
    block: PreparedBlock, tables: Sequence[Values], keep: AbstractSet[int], budget: Budget
) -> None:
    """Run a block on several tables of values, each of one input; `keep` as in `Step.run`."""
    meter = Meter(budget, lambda: chain(*tables), len(tables))
    with np.errstate(all="ignore"):
        for step in block.steps:
            if len(tables) < 2 or not _run_joined(step, tables, keep, meter):
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
    slot = step.inputs[0][1] if [key for key, _ in step.inputs] == ["x"] else None
    arrays = [values[slot] for values in tables] if isinstance(slot, int) else []
    if not isinstance(slot, int) or not _alike(arrays, step.joins):
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
    rank = arrays[0].ndim
    if rank < 2 or any(array.ndim != rank for array in arrays):
        return False
    others = [np.delete(array.shape, axis).tolist() for array in arrays]
    return others == others[:1] * len(others)
