"""Operations whose inputs agree and whose outputs do not.

The program as it is and the same program in float32 with exact weights go through their operations
side by side. Each operation of the first is also asked on the inputs of the second: what then
differs is its own doing, be it rounding, overflow or a compressed weight that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.fidelity.cases import Case
from pytest_ane.fidelity.diff import Difference, difference
from pytest_ane.mil.records import Operation
from pytest_ane.reference import Session
from pytest_ane.reference.prepare import uses
from pytest_ane.reference.replay import run_step
from pytest_ane.reference.state import State
from pytest_ane.reference.steps import Values

_HALF_MAX = 65504.0
"""The largest number of fp16."""
_HALF_MIN = 2.0**-14
"""Its smallest normal number."""
_SHOWS = 1e-2


@dataclass(frozen=True)
class Suspect:
    """One operation's result, in the call where it is furthest off.

    Attributes:
        op: its kind.
        name: of its result.
        own: relative difference from the float32 result, on the inputs of the latter.
        inputs: greatest relative difference of its inputs in the two runs.
        output: relative difference of its result in the two runs.
        peak: largest magnitude of the float32 result.
        weights: compressed ones that it takes.
    """

    op: str
    name: str
    own: float
    inputs: float
    output: float
    peak: float
    weights: tuple[str, ...] = ()

    @property
    def underflows(self) -> bool:
        """Whether fp16 has no normal numbers for what it should yield, and that shows."""
        return 0 < self.peak < _HALF_MIN and self.own > _SHOWS

    @property
    def overflows(self) -> bool:
        """Whether fp16 cannot hold what it should yield."""
        return self.peak > _HALF_MAX and not math.isfinite(self.own)


def suspects(
    now: Session, ideal: Session, cases: Sequence[Case], weights: Mapping[str, str]
) -> list[Suspect]:
    """All operations whose result is floating, those that do most by themselves first.

    Args:
        now: the program as it is.
        ideal: the same in float32, with exact weights.
        cases: of programs with states the first one is asked.
        weights: names of compressed weights by the values that hold them.
    """
    worst: dict[str, Suspect] = {}
    for calls, states in _rounds(now, ideal, cases):
        for found in _walk(now, ideal, calls, states, weights):
            known = worst.get(found.name)
            if known is None or rank(found.own) > rank(known.own):
                worst[found.name] = found
    # A sort is stable: of operations that are equally off the first in the program comes first.
    return sorted(worst.values(), key=lambda s: -rank(s.own))


def rank(relative: float) -> float:
    """NaN and infinity, where no number was to be had, above all that are finite."""
    return relative if math.isfinite(relative) else math.inf


def _rounds(now: Session, ideal: Session, cases: Sequence[Case]) -> Iterator[tuple[Any, Any]]:
    """Inputs that are run together, with both programs' states."""
    if not now.model.states:
        yield [call for case in cases for call in case.calls], (None, None)
        return
    both = (now.make_state(), ideal.make_state())
    for call in cases[0].calls:
        yield [call], both


def _walk(
    now: Session,
    ideal: Session,
    calls: Sequence[Mapping[str, Any]],
    states: tuple[Any, Any],
    weights: Mapping[str, str],
) -> Iterator[Suspect]:
    declared = {feature.name for feature in now.model.inputs}
    inputs = [{n: x for n, x in call.items() if n in declared} for call in calls]
    first = [now.table(each, states[0]) for each in inputs]
    second = [ideal.table(each, states[1]) for each in inputs]
    mixed = [_sharing_states(a, b) for a, b in zip(map(list, first), second, strict=True)]
    by_slot = {now.slots[o.name]: op for op in now.model.main.block.operations
               for o in op.outputs if o.name in now.slots}  # fmt: skip
    names = {slot: name for name, slot in now.slots.items()}
    run: dict[str, float] = {}
    for index, step in enumerate(now.block.steps):
        run_step(now, index, mixed)
        run_step(now, index, first)
        own = {slot: [table[slot] for table in mixed] for slot, _ in step.outputs}
        run_step(ideal, index, second)
        for slot, _ in step.outputs:
            theirs = [table[slot] for table in second]
            op, name = by_slot[slot], names[slot]
            for table, value in zip(mixed, theirs, strict=True):
                table[slot] = value
            if not _floating(theirs):
                continue
            both = _worst(op, name, [table[slot] for table in first], theirs)
            run[name] = both.relative
            yield Suspect(
                op=op.op,
                name=name,
                own=_worst(op, name, own[slot], theirs).relative,
                inputs=max((run.get(n, 0.0) for n in uses(op)), key=rank, default=0.0),
                output=both.relative,
                peak=max(float(np.abs(x).max(initial=0.0)) for x in theirs),
                weights=tuple(weights[n] for n in dict.fromkeys(uses(op)) if n in weights),
            )


def _sharing_states(values: list[Any], other: Values) -> list[Any]:
    return [o if isinstance(o, State) else v for v, o in zip(values, other, strict=True)]


def _floating(values: Sequence[Any]) -> bool:
    return all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in values)


def _worst(op: Operation, name: str, a: Sequence[Any], b: Sequence[Any]) -> Difference:
    found = [difference(op.op, name, np.asarray(x), y) for x, y in zip(a, b, strict=True)]
    return max(found, key=lambda d: rank(d.relative))
