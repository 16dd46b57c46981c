"""The fidelity measurement: an artifact's outputs against its reference's, probe by probe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.backends import Runner
from pytest_ane.core.arrays import FloatArray
from pytest_ane.core.errors import ExecutionError
from pytest_ane.gates.fidelity.compare import alone, compare
from pytest_ane.gates.fidelity.comparison import Comparison, Fidelity
from pytest_ane.metrics.cosine import flat_cosine, group_products
from pytest_ane.probes.cases import Case, Rows


def measure(
    runner: Runner, cases: Iterable[Case], *, compared: bool, provenance: Mapping[str, Any]
) -> Fidelity:
    """Run every case on the artifact and compare; `compared` is False without a reference.

    Raises:
        ExecutionError: the artifact cannot be run, or lacks an output of the reference's shape.
    """
    cases = list(cases)
    found = [
        comparison
        for case, (outputs, beside) in zip(cases, _outputs(runner, cases), strict=True)
        for comparison in _compared(case, outputs, beside, compared)
    ]
    return Fidelity(tuple(found), compared, dict(provenance))


def _compared(
    case: Case, outputs: Rows, beside: Mapping[str, Sequence[FloatArray]], compared: bool
) -> Iterator[Comparison]:
    for name, expected in case.expected.items() if compared else ():
        actual = outputs.get(name)
        if actual is None or actual.shape != expected.shape:
            raise ExecutionError(_mismatch(case, name, outputs, expected))
        inputs = beside.get(name, ())
        yield compare(case, name, actual, expected, _nearest(inputs, expected))
    for name in outputs:
        # The reference says nothing of it, so it is not compared; NaN in it still fails.
        if not compared or name not in case.expected:
            yield alone(case, name, outputs[name])


def _nearest(inputs: Sequence[FloatArray], expected: FloatArray) -> FloatArray | None:
    """The input that an output is most like, in angle; what is zero or not finite is like none."""

    def likeness(x: FloatArray) -> float:
        found = abs(flat_cosine(group_products(x, expected, x.shape[1])))
        return found if found >= 0 else -1.0

    return max(inputs, key=likeness, default=None)


def _outputs(
    runner: Runner, cases: Sequence[Case]
) -> Iterator[tuple[Rows, Mapping[str, Sequence[FloatArray]]]]:
    """Each case's rows of all its calls, one after another on a state of its own.

    All cases' first calls are made together, then their second ones, and so on. Beside them, by
    output, the inputs that may be its residual path, where the case does not know it.
    """
    states = [runner.make_state() for _ in cases]
    parts: list[list[Rows]] = [[] for _ in cases]
    beside: list[dict[str, Sequence[FloatArray]]] = [{} for _ in cases]
    for turn in range(max((len(case.calls) for case in cases), default=0)):
        at = [i for i, case in enumerate(cases) if turn < len(case.calls)]
        calls = [cases[i].calls[turn] for i in at]
        for i, outputs in zip(at, runner.predict_all(calls, [states[i] for i in at]), strict=True):
            rows = cases[i].rows(outputs)
            parts[i].append(rows)
            if cases[i].residual_unknown and len(cases[i].calls) == 1:
                known = rows.keys() & outputs.keys()
                beside[i] = {name: _alike(cases[i], name, outputs[name]) for name in known}
    for mine, others in zip(parts, beside, strict=True):
        yield {name: np.concatenate([part[name] for part in mine]) for name in mine[0]}, others


def _alike(case: Case, name: str, output: npt.NDArray[Any]) -> list[FloatArray]:
    """The floating-point inputs of an output's shape, as rows of that output."""
    return [
        case.rows({name: x})[name]
        for x in case.calls[0].values()
        if np.issubdtype(x.dtype, np.floating) and x.shape == output.shape
    ]


def _mismatch(case: Case, name: str, outputs: Rows, expected: FloatArray) -> str:
    given = ", ".join(f"{key} {list(rows.shape)}" for key, rows in outputs.items()) or "nothing"
    return (
        f"{case.name}: the reference gives {name} {list(expected.shape)}, the artifact {given}; "
        "outputs are compared by name and must have one shape."
    )
