"""Sequences of calls on one state: where each begins, and how far a reference tells something."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol, TypeVar

import numpy as np

from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import BuildError, ExecutionError
from pytest_ane.mlprogram.metrics.tensors import relative_l2
from pytest_ane.models.families import Inputs
from pytest_ane.probes.cases import TURNS, Calls, Case, as_array, package_case
from pytest_ane.probes.domains import Slots
from pytest_ane.probes.seeded import gaussian, generator, pick

_LONG, _BEYOND, _KEYS = 40, 4, 8
"""Calls of long sequences, positions beyond the last slot where they go round, and keys of one."""
_T = TypeVar("_T")
_DISTURBED, _DECIDED, _GROWN = 0.01, 0.1, 32.0
"""What states are disturbed by, what that may make of an output, and how far states may grow."""


class _Oracle(Protocol):
    """What answers calls on states of its own: a package's runner, or a module."""

    def make_state(self) -> Any: ...

    def read_states(self, state: Any) -> dict[str, Array]: ...

    def write_states(self, state: Any, values: Arrays) -> None: ...

    def predict(self, inputs: Arrays, state: Any) -> dict[str, Any]: ...


def steady(oracle: _Oracle, case: Case, *, growing: bool, judged: bool = True) -> list[Arrays]:
    """A package's outputs of the calls of a long sequence that tell something.

    They end before a call that it refuses and, where `judged`, before one that gives NaN or makes a
    state 32 times as large as the first ones did: random numbers in a mask's place do. Where
    positions lead nowhere, `growing`, they also end where a hundredth of the states has grown to a
    tenth of an output, as it may in a recurrence on random inputs: there rounding alone decides.
    """
    outputs: list[Arrays] = []
    try:
        states = [oracle.make_state(), *([oracle.make_state()] if growing else [])]
        for state in states:
            oracle.write_states(state, case.states)
        largest = 0.0
        for number, call in enumerate(case.calls):
            if number == len(TURNS) and growing:
                kept = oracle.read_states(states[0])
                noise = ((name, gaussian(generator(name), (x.size,))) for name, x in kept.items())
                other = {n: kept[n] * (1 + _DISTURBED * x.reshape(kept[n].shape)) for n, x in noise}
                oracle.write_states(states[1], other)
            mine, *others = [
                oracle.predict(call, state)
                for state in (states if number >= len(TURNS) else states[:1])
            ]
            values = oracle.read_states(states[0]).values()
            size = max((float(np.abs(x).max(initial=0.0)) for x in values), default=0.0)
            if number < len(TURNS):
                largest = max(size, largest)
            elif judged and not size <= _GROWN * largest:
                break
            if judged and not all(np.isfinite(as_array(x)).all() for x in mine.values()):
                break
            if any(_apart(mine, x) > _DECIDED for x in others):
                break
            outputs.append(mine)
    except (BuildError, ExecutionError):
        pass
    return outputs


def _apart(mine: Arrays, others: Arrays) -> float:
    """The largest relative L2 distance of an output; infinite for what is not finite."""
    pairs = ((as_array(others[n]), as_array(x)) for n, x in mine.items())
    apart = [float(relative_l2(a.reshape(1, -1), b.reshape(1, -1))[0]) for a, b in pairs]
    return max((x if np.isfinite(x) else np.inf for x in apart), default=0.0)


def sequences(seed: int, steps: Sequence[int], leads: Slots) -> list[tuple[Calls, bool]]:
    """The calls of long sequences, each on states of its own, and whether these are filled before.

    Calls of `steps` positions reach every slot, and beyond the last where positions go round. They
    are dealt out to sequences of few keys, each over the whole length: among many the loss of one
    is less than what compression does. The first goes back to 0, as a second text on a used state
    does; one more has two starts that are drawn. Where 40 calls do not reach every slot, those
    between are left out, and filled states have the last calls and the drawn ones once more.
    Without slots it is one sequence of 40 calls, the last two of which begin anew.
    """
    least = min(steps)
    again = ((0, least), (least, least))
    if not leads.count:
        return [((*((i * least, least) for i in range(_LONG - len(again))), *again), False)]
    end = leads.count + max(least, _BEYOND) if leads.end is None else leads.end
    order = steps if len(steps) == 1 else (max(steps), least, least, *steps[1:-1])
    calls: list[tuple[int, int]] = []
    for step in cycle(order):
        at = sum(calls[-1]) if calls else 0
        if at >= end or end < least:
            break
        fits = step if at + step <= end else least
        calls.append((min(at, end - fits), fits))
    if not calls:
        return []
    starts = pick(seed, "starts", range(end - least + 1))
    chosen = (*((at, least) for at in starts), *calls[-2:])
    if whole := len(calls) <= _LONG:
        some = calls
    else:
        some = [calls[i * (len(calls) - 1) // (_LONG - 1)] for i in range(_LONG)]
    every = -(-len(some) // max(2, _KEYS * len(calls) // max(1, sum(n for _, n in calls))))
    dealt = [tuple(some[i::every]) for i in range(every)]
    first = tuple(call for call in again if sum(call) <= end)
    rest = [] if whole else [((*chosen[:-2], *calls[-_KEYS:], *first), True)]
    return [((*dealt[0], *first), False), *((each, False) for each in (*dealt[1:], chosen)), *rest]


def first_calls(turns: Sequence[int], step: int, leads: Slots) -> Calls:
    """Calls that begin at these turns, each of `step` positions, before the last slot."""
    end = math.inf if leads.end is None else max(0, leads.end - step)
    return tuple((int(min(turn * step, end)), step) for turn in turns)


def long_cases(
    seed: int,
    leads: Slots,
    steps: Mapping[int, _T],
    states: Mapping[str, tuple[int, ...]],
    call: Callable[[_T, int, int, int], Inputs],
    **known: Any,
) -> Iterator[Case]:
    """Long `sequences` of calls, what each number of positions takes in `steps`.

    `call` makes one of what its step takes, the sequence's number, its position, and its own
    number. States are filled with normal values of RMS 1; `known` are attributes of a `Case`.
    """
    for number, (spans, filled) in enumerate(sequences(seed, sorted(steps), leads), start=1):
        calls = [call(steps[step], number, at, i) for i, (at, step) in enumerate(spans)]
        content = {
            name: gaussian(generator(seed, "state", name), shape)
            for name, shape in (states if filled else {}).items()
        }
        first, last = min(spans)[0], max(map(sum, spans)) - 1
        name = f"sequence of {len(spans)} calls"
        if leads.count:
            name = f"sequence {number}, positions {first} to {last}"
        yield package_case(
            "gaussian", name, calls, (), length=1, states=content, start=first, spans=spans, **known
        )
