"""Runs of a package on probes: every call on its state, and the rows that are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_ane.backends import Runner
from pytest_ane.mlprogram.arrays import Arrays, FloatArray
from pytest_ane.mlprogram.metrics.cosine import cosine
from pytest_ane.probes.cases import Case, Rows


@dataclass(frozen=True, eq=False)
class Run:
    """What a package made of one probe.

    Attributes:
        rows: of all calls, one after another, by output.
        lengths: T of the call that each row is of.
        alike: by output, the inputs that may be its residual path, where the case does not know it.
    """

    rows: Rows
    lengths: tuple[int, ...]
    alike: Mapping[str, Sequence[FloatArray]]


class CaseState:
    """The states that a case's calls are made on, one after another."""

    def __init__(self, runner: Runner, case: Case) -> None:
        self._runner, self._case, self._state = runner, case, runner.make_state()
        self._marks: dict[int, Arrays] = {}
        if case.states:
            runner.write_states(self._state, case.states)

    def before(self, turn: int) -> Any:
        """As they are to be before a call: one that goes back finds recurrent states restored."""
        restored = self._case.restored
        if turn in restored:
            self._runner.write_states(self._state, self._marks[restored[turn]])
        if turn in restored.values():
            self._marks[turn] = self._runner.read_states(self._state, self._case.recurrent)
        return self._state


def run_cases(runner: Runner, cases: Sequence[Case]) -> Iterator[Run]:
    """Run each case's calls, one after another on a state of its own.

    All cases' first calls are made together, then their second ones, and so on.
    """
    states = [CaseState(runner, case) for case in cases]
    parts: list[list[Rows]] = [[] for _ in cases]
    alike: list[list[dict[str, list[FloatArray]]]] = [[] for _ in cases]
    for turn in range(max((len(case.calls) for case in cases), default=0)):
        at = [i for i, case in enumerate(cases) if turn < len(case.calls)]
        calls = [cases[i].calls[turn] for i in at]
        before = [states[i].before(turn) for i in at]
        for i, outputs in zip(at, runner.predict_all(calls, before), strict=True):
            rows = cases[i].rows(outputs)
            parts[i].append(rows)
            if cases[i].residual_unknown:
                known = rows.keys() & outputs.keys()
                call = cases[i].calls[turn]
                alike[i].append({n: _alike(cases[i], call, n, outputs[n]) for n in known})
    for case, mine, others in zip(cases, parts, alike, strict=True):
        yield Run(case.joined(mine), _lengths(case, mine), _sequences(others))


def _sequences(calls: Sequence[Mapping[str, list[FloatArray]]]) -> dict[str, list[FloatArray]]:
    """What is like an output in every call, as one sequence."""
    if not calls:
        return {}
    return {
        name: [np.concatenate(parts) for parts in zip(*(call[name] for call in calls), strict=True)]
        for name in calls[0]
    }


def _lengths(case: Case, parts: Sequence[Rows]) -> tuple[int, ...]:
    sizes = (max(map(len, part.values()), default=0) for part in parts)
    every = [size for size in sizes for _ in range(size)]
    return tuple(every if case.kept is None else (every[i] for i in case.kept))


def nearest(inputs: Sequence[FloatArray], expected: FloatArray) -> FloatArray | None:
    """Input with the highest |cosine| to the output; zero or non-finite inputs rank last."""

    def likeness(x: FloatArray) -> float:
        like = abs(float(cosine(x.reshape(1, -1), expected.reshape(1, -1))[0]))
        return like if like >= 0 else -1.0

    return max(inputs, key=likeness, default=None)


def _alike(case: Case, call: Arrays, name: str, output: Any) -> list[FloatArray]:
    """The floating-point inputs of an output's shape, as rows of that output."""
    return [
        case.rows({name: x})[name]
        for x in call.values()
        if np.issubdtype(x.dtype, np.floating) and x.shape == getattr(output, "shape", None)
    ]
