"""What a shard's probes exercise: functions, states, inputs, lengths, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ane.gates.fidelity.records import Covered
from pytest_ane.mil.records import MLModel
from pytest_ane.probes.cases import Case
from pytest_ane.probes.domains import exercised


def coverage(program: MLModel, cases: Sequence[Case]) -> tuple[Covered, ...]:
    """What cases exercise of a program: each function, state and input, and lengths."""
    inputs = (Covered(f"input {each.name}", str(each)) for each in exercised(cases))
    return (*_functions(program), *_states(program, cases), *inputs, _lengths(cases))


def _functions(program: MLModel) -> Iterator[Covered]:
    chosen = program.main
    for name, function in program.program.functions.items():
        if function is chosen:
            yield Covered(f"function {name}", "run")
        else:
            yield Covered(
                f"function {name}",
                "not run",
                exercised=False,
                remedy="save each function as a package of its own and gate these",
            )


def _states(program: MLModel, cases: Sequence[Case]) -> Iterator[Covered]:
    calls = max((len(case.calls) for case in cases), default=0)
    for state in program.states:
        carried = [case.carried[state.name] for case in cases if state.name in case.carried]
        what = f"state {state.name}"
        if calls <= 1:
            yield Covered(
                what,
                "every probe is one call on a fresh state",
                exercised=False,
                remedy="give a reference that runs sequences, or golden tensors of several calls",
            )
        elif carried and not any(carried):
            yield Covered(
                what,
                "what earlier calls leave in it changes nothing of the reference's outputs",
                exercised=False,
                remedy="give inputs with which it is read, in golden tensors of several calls",
            )
        else:
            yield Covered(what, f"carried over up to {calls} calls")


def _lengths(cases: Sequence[Case]) -> Covered:
    lengths = ", ".join(str(n) for n in sorted({case.length for case in cases}))
    return Covered("lengths", f"{lengths} compared" if lengths else "nothing compared")
