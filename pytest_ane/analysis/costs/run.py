"""One run of a program for its shapes, counted operation by operation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pytest_ane.analysis.costs.flexible import Shape
from pytest_ane.analysis.costs.macs import macs
from pytest_ane.analysis.costs.records import OpCost
from pytest_ane.analysis.costs.standins import STAND_INS
from pytest_ane.analysis.costs.stored import Stored
from pytest_ane.mil.records import DType, Operation, Ref, StateType, TensorType, ValueType
from pytest_ane.mil.values import bits
from pytest_ane.reference.session import Session
from pytest_ane.reference.steps import Compute, Values

_GATHERS = frozenset({"gather", "gather_along_axis", "gather_nd"})
"""Operations that read no more of a weight than they give."""
_STATES = frozenset({"read_state", "write_state"})
"""Operations on states, whose bytes are counted apart."""


class Run:
    """A session's plan over slots that hold the inputs."""

    def __init__(self, session: Session, values: Values) -> None:
        self._session, self._values = session, values
        self._stored = Stored()
        self._types: dict[str, ValueType] = {n.name: n.type for n in session.model.main.inputs}
        self._producers: dict[str, Operation] = {}
        self._touched: set[tuple[str, str]] = set()
        # Nothing is let go of: arrays are small or take no memory, and outputs are asked for later.
        self._keep = frozenset(range(len(values)))

    def all(self) -> tuple[OpCost, ...]:
        """Costs of every operation that runs."""
        return tuple(self._all())

    def result(self, name: str) -> Any:
        """A value after the run."""
        return self._values[self._session.slots[name]]

    def _all(self) -> Iterator[OpCost]:
        steps = iter(self._session.block.steps)
        for op in self._session.model.main.block.operations:
            if op.outputs and op.outputs[0].name not in self._session.slots:
                self._stored.fold(op)
                continue
            step = next(steps)
            assert isinstance(step, Compute)
            yield self._one(op, step)
            self._types.update({out.name: out.type for out in op.outputs})
            self._producers.update({out.name: op for out in op.outputs})

    def _one(self, op: Operation, step: Compute) -> OpCost:
        assert isinstance(step.compute, partial)
        given = step.compute.keywords | {
            key: self._values[at] if isinstance(at, int) else [self._values[s] for s in at]
            for key, at in step.inputs
        }
        reads = sum(self._size(name) for name in self._tensors(op))
        if (stand_in := STAND_INS.get(op.op)) is not None:
            computed = partial(stand_in, **step.compute.keywords)
            step = replace(step, compute=computed)
        step.run(self._values, self._keep)
        results = [np.shape(self.result(out.name)) for out in op.outputs]
        writes = sum(size_of(o.type, s) for o, s in zip(op.outputs, results, strict=True))
        weights, elements = self._stored.take(op)
        if op.op in _GATHERS and weights:
            share = min(1.0, _count(results) / max(elements, 1))
            weights, elements = round(weights * share), round(elements * share)
        return OpCost(
            op.name,
            op.op,
            macs=macs(op.op, given, results[0]) if results else 0,
            width=results[0][-1] if results and results[0] else 1,
            weights=weights,
            elements=elements,
            reads=0 if op.op in _STATES else reads,
            writes=0 if op.op in _STATES else writes,
            states=self._states(op),
        )

    def _tensors(self, op: Operation) -> Iterator[str]:
        """Names of the computed values an operation takes."""
        for arguments in op.inputs.values():
            for argument in arguments:
                if isinstance(argument, Ref) and argument.name in self._types:
                    yield argument.name

    def _size(self, name: str) -> int:
        return size_of(self._types[name], np.shape(self.result(name)))

    def _states(self, op: Operation) -> int:
        """Bytes to or from a state: all of it once, or the rows alone that are put into it."""
        if op.op not in _STATES:
            return 0
        (state,) = op.inputs["input"]
        assert isinstance(state, Ref)
        if (op.op, state.name) in self._touched:
            return 0
        self._touched.add((op.op, state.name))
        kind = self._types[state.name]
        assert isinstance(kind, StateType)
        whole = size_of(kind.wrapped, tuple(d or 0 for d in kind.wrapped.shape))
        return whole if op.op == "read_state" else min(whole, self._update(op) or whole)

    def _update(self, op: Operation) -> int:
        """Bytes of what a `slice_update` puts into a state that is written at once; else 0."""
        (data,) = op.inputs["data"]
        source = self._producers.get(data.name) if isinstance(data, Ref) else None
        if source is None or source.op != "slice_update":
            return 0
        (update,) = source.inputs["update"]
        return self._size(update.name) if isinstance(update, Ref) else 0


def _count(shapes: Sequence[Shape]) -> int:
    return sum(map(math.prod, shapes))


def size_of(kind: ValueType, shape: Shape) -> int:
    """Bytes of a tensor as typed, such as two an element for fp16; 0 for what is no tensor."""
    if not isinstance(kind, TensorType) or kind.dtype is DType.STRING:
        return 0
    return -(-math.prod(shape) * bits(kind.dtype) // 8)
