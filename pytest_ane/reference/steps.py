"""Prepared programs: operations bound to numbered slots, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from pytest_ane.core.errors import ExecutionError
from pytest_ane.mil.records import DType, TensorType, ValueType
from pytest_ane.reference.dtypes import Precision, carried, rounded
from pytest_ane.reference.registry import FAILURES

Values = list[Any]
"""One value for each slot; None where none is known or needed any more."""
Outputs = tuple[tuple[int, ValueType], ...]
"""Slots of results, and their types."""
NOTHING: frozenset[int] = frozenset()


class Step(Protocol):
    """One operation, ready to run."""

    @property
    def outputs(self) -> Outputs:
        """Slots of its results."""
        ...

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Take inputs from their slots, put results into theirs; free what `keep` does not name."""


@dataclass(frozen=True)
class Plan:
    """A block: its steps, the slots of its inputs and of its results."""

    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def run(self, values: Values, keep: AbstractSet[int] = NOTHING) -> list[Any]:
        """Run all steps on `values`; the block's results."""
        for step in self.steps:
            step.run(values, keep)
        return [values[slot] for slot in self.results]


@dataclass(frozen=True)
class Compute:
    """A call of an operation's function.

    Attributes:
        what: how messages name it.
        compute: the function, its constant parameters bound; takes the varying ones by name.
        inputs: parameter names with the slots of their varying values.
        direct: the same function by position, and the slots of what it takes, if there is one.
        last_use: slots that no later operation needs.
        settle: for each result, what puts it in the form that its type says.
        joins: axis along which several inputs may be joined and run as one; None for no such.
        rounds: whether its one result is rounded to fp16.
    """

    what: str
    compute: Callable[..., Any]
    inputs: tuple[tuple[str, int | tuple[int, ...]], ...]
    outputs: Outputs
    settle: tuple[Callable[[Any], Any], ...]
    last_use: tuple[int, ...]
    joins: int | None = None
    rounds: bool = False
    direct: tuple[Callable[..., Any], tuple[int, ...]] | None = None

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Compute, and round the results as their types say."""
        try:
            if self.direct is None:
                result = self.compute(**self._varying(values))
            else:
                function, slots = self.direct
                result = function(*[values[slot] for slot in slots])
            if result is None:
                raise TypeError("its function returns nothing")
            if len(self.outputs) == 1 and not isinstance(result, tuple):
                values[self.outputs[0][0]] = self.settle[0](result)
            else:
                self._store(values, result)
        except FAILURES as error:
            shapes = {k: getattr(v, "shape", None) for k, v in self._varying(values).items()}
            raise ExecutionError(f"{self.what} fails on inputs {shapes}: {error}.") from error
        free(values, self.last_use, keep)

    def _store(self, values: Values, result: Any) -> None:
        """Put several results, or none, into their slots."""
        results = result if isinstance(result, tuple) else (result,)
        for (slot, _), settle, found in zip(self.outputs, self.settle, results, strict=True):
            values[slot] = settle(found)

    def _varying(self, values: Values) -> dict[str, Any]:
        return {
            key: values[slot] if isinstance(slot, int) else tuple(values[s] for s in slot)
            for key, slot in self.inputs
        }


@dataclass(frozen=True)
class Cond:
    """`cond`: one of two blocks."""

    pred: int
    branches: tuple[Plan, Plan]
    outputs: Outputs
    precision: Precision
    last_use: tuple[int, ...]

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Run the first block where the predicate is true, else the second."""
        branch = self.branches[0 if np.all(values[self.pred]) else 1]
        store(values, self.outputs, branch.run(values, keep), self.precision)
        free(values, self.last_use, keep)


@dataclass(frozen=True)
class WhileLoop:
    """`while_loop`: a condition and a body, both of the loop's variables."""

    initial: tuple[int, ...]
    condition: Plan
    body: Plan
    outputs: Outputs
    precision: Precision
    last_use: tuple[int, ...]

    def run(self, values: Values, keep: AbstractSet[int]) -> None:
        """Run the body as long as the condition is true."""
        store(values, self.outputs, [values[slot] for slot in self.initial], self.precision)
        while True:
            variables = [values[slot] for slot, _ in self.outputs]
            copy(values, self.condition.inputs, variables)
            if not np.all(self.condition.run(values, keep)[0]):
                break
            copy(values, self.body.inputs, variables)
            store(values, self.outputs, self.body.run(values, keep), self.precision)
        free(values, self.last_use, keep)


def settled(found: Any, kind: ValueType, precision: Precision, moves: bool) -> Any:
    """A result as its type says; lists, dictionaries, states and texts as they are."""
    return settling(kind, precision, moves)(found)


@lru_cache(maxsize=1024)
def settling(kind: ValueType, precision: Precision, moves: bool) -> Callable[[Any], Any]:
    """What puts results of a type in the form that the type says."""
    if not isinstance(kind, TensorType) or kind.dtype is DType.STRING:
        return lambda found: found
    if kind.dtype is DType.FP16 and precision == "as-typed" and not moves:
        return rounded  # Whoever runs steps has numpy's warnings off.
    dtype = np.dtype(carried(kind.dtype, precision))
    return lambda found: np.asarray(found).astype(dtype, copy=False)


def store(values: Values, outputs: Outputs, found: Sequence[Any], precision: Precision) -> None:
    """Put results into their slots, as their types say."""
    for (slot, kind), value in zip(outputs, found, strict=True):
        values[slot] = settled(value, kind, precision, moves=True)


def copy(values: Values, slots: Sequence[int], found: Sequence[Any]) -> None:
    """Put values into other slots."""
    for slot, value in zip(slots, found, strict=True):
        values[slot] = value


def free(values: Values, slots: Sequence[int], keep: AbstractSet[int]) -> None:
    """Let go of values that are not needed any more."""
    for slot in slots:
        if slot not in keep:
            values[slot] = None
