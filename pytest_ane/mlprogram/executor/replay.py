"""A program run again with other constants: only what follows from them is computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from pytest_ane.mlprogram.arrays import Array
from pytest_ane.mlprogram.executor.lockstep import run_all
from pytest_ane.mlprogram.executor.prepare import uses
from pytest_ane.mlprogram.executor.session import Session
from pytest_ane.mlprogram.executor.steps import PreparedBlock, Values
from pytest_ane.mlprogram.records import Block


class Replay:
    """A session's run on several inputs that keeps every value.

    Args:
        session: of a model without states.
        inputs: as in `Session.predict_all`.
    """

    def __init__(self, session: Session, inputs: Sequence[Mapping[str, Array]]) -> None:
        self.session = session
        self._keep = frozenset(range(len(session.template)))
        self._tables = [session.table(x) for x in inputs]
        _run(session, session.block, self._tables, self._keep)

    def outputs(self) -> list[dict[str, Any]]:
        """The declared outputs by name, for each of the inputs."""
        return [_outputs(self.session, values) for values in self._tables]

    def variant(self, session: Session, changed: Collection[str]) -> list[dict[str, Any]]:
        """The declared outputs of another session of the same model, prepared in the same way.

        Args:
            session: one that differs in constants alone.
            changed: names of the constants that differ, as their operations yield them.
        """
        names = reached(session.model.main.block, changed)
        slots = {slot for name, slot in session.slots.items() if name in names}
        steps = [s for s in session.block.steps if any(slot in slots for slot, _ in s.outputs)]
        tables = [_with_constants(values, session.template) for values in self._tables]
        _run(session, PreparedBlock((), tuple(steps), ()), tables, self._keep)
        return [_outputs(session, values) for values in tables]


def reached(block: Block, changed: Collection[str]) -> set[str]:
    """All names that follow from those that changed, and these themselves."""
    names = set(changed)
    for op in block.operations:
        if not names.isdisjoint(uses(op)):
            names.update(out.name for out in op.outputs)
    return names


def run_step(session: Session, index: int, tables: Sequence[Values]) -> None:
    """Run one step of a session on several tables of values, and keep its results."""
    step = session.block.steps[index]
    keep = frozenset(slot for slot, _ in step.outputs)
    _run(session, PreparedBlock((), (step,), ()), tables, keep)


def _run(
    session: Session, block: PreparedBlock, tables: Sequence[Values], keep: AbstractSet[int]
) -> None:
    with np.errstate(all="ignore"):
        run_all(block, tables, keep, session.budget)


def _with_constants(values: Values, template: Values) -> Values:
    return [
        v if constant is None else constant for v, constant in zip(values, template, strict=True)
    ]


def _outputs(session: Session, values: Values) -> dict[str, Any]:
    return {name: session.result(name, values) for name in session.model.main.block.outputs}
