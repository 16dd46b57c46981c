"""The fidelity measurement: an artifact's outputs against its reference's, probe by probe.

Every metric is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.backends import Runner
from pytest_ane.core.arrays import DoubleArray, FloatArray
from pytest_ane.core.errors import ExecutionError
from pytest_ane.gates.fidelity.records import GROUP, Comparison, Errors, Fidelity
from pytest_ane.metrics.cosine import (
    Contributions,
    contributions,
    contributions_off_input,
    cosine,
    flat_cosine,
    group_cosines,
    group_products,
    zeros,
)
from pytest_ane.metrics.error import (
    WorstError,
    finite_fraction,
    relative_l2,
    worst_abs_error,
    worst_rel_error,
)
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
    """Input with the highest |cosine| to the output; zero or non-finite inputs rank last."""

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
    for case, mine, others in zip(cases, parts, beside, strict=True):
        yield case.joined(mine), others


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


def compare(
    case: Case, name: str, actual: FloatArray, expected: FloatArray, residual: FloatArray | None
) -> Comparison:
    """Rows `[T, C]` of an output, C > 0, against the reference's.

    Args:
        case: the probe; it may know the residual path of the output.
        name: the output.
        actual: rows of the artifact.
        expected: rows of the reference.
        residual: input rows to project out of both outputs where the residual path is unknown;
            None to compare as is. On `extreme` inputs a contribution is lost in the rounding of
            the sum, so it is not compared.
    """
    exact = name in case.residual
    path = case.residual[name] if exact else residual
    if case.kind == "extreme":
        path = None
    spoilt = ~np.isfinite(actual).all(axis=1)
    a, b = (case.compared(rows).astype(np.float64) for rows in (actual, expected))
    path = None if path is None else case.compared(path)
    zero = zeros(a, b, case.input_max)
    absolute, ratio = worst_abs_error(a, b), worst_rel_error(a, b)
    live = zero.live
    positions = np.flatnonzero(live) + case.start
    if not live.all():
        a, b, path = a[live], b[live], None if path is None else path[live]
    added = contributions if exact else contributions_off_input
    return Comparison(
        **_named(case, name, actual),
        cosines=tuple(round(x, 9) for x in cosine(a, b).tolist()),
        positions=tuple(positions.tolist()),
        both_zero=_indices(zero.both, case.start),
        one_zero=_indices(zero.one, case.start),
        error_max=float(absolute.value),
        relative=tuple(_digits(x, 4) for x in relative_l2(a, b).tolist()),
        spoilt=_indices(spoilt, case.start),
        experts=tuple(case.routed[i] for i in np.flatnonzero(zero.one)) if case.routed else (),
        errors=_errors(a, b, absolute, ratio, case.start) if len(a) else None,
        **({} if path is None else _contributed(added(a, b, path), positions)),
    )


def alone(case: Case, name: str, actual: FloatArray) -> Comparison:
    """Rows `[T, C]` of an output that the reference does not have: only whether they are finite."""
    return Comparison(
        **_named(case, name, actual),
        cosines=(),
        positions=(),
        both_zero=_indices(~actual.any(axis=1), case.start),
        one_zero=(),
        error_max=0.0,
        spoilt=_indices(~np.isfinite(actual).all(axis=1), case.start),
    )


def _named(case: Case, name: str, actual: FloatArray) -> dict[str, Any]:
    """Fields of a comparison that need no reference."""
    return {
        "kind": case.kind,
        "probe": case.name,
        "output": name,
        "length": case.length,
        "input_max": case.input_max,
        "finite": finite_fraction(actual),
    }


def _contributed(added: Contributions, positions: npt.NDArray[Any]) -> dict[str, Any]:
    """Fields of a comparison; no cosine of what adds nothing."""
    cosines, idle, ratios, single = added
    return {
        "contributions": tuple(round(x, 6) for x in cosines[~idle].tolist()),
        "idle": tuple(positions[idle].tolist()),
        "one_adds": tuple(positions[single].tolist()),
        "residual": None if idle.all() else _digits(float(np.median(ratios[~idle])), 4),
    }


def _errors(
    a: DoubleArray, b: DoubleArray, absolute: WorstError, ratio: WorstError, start: int
) -> Errors:
    products = group_products(a, b, GROUP)
    groups = group_cosines(products)
    lowest = int(np.argmin(groups))  # NaN counts as lowest.
    return Errors(
        cosine=round(flat_cosine(products), 6),
        group_cosine=round(float(groups[lowest]), 6),
        group=lowest * GROUP,
        absolute_at=(start + absolute.row, absolute.channel),
        relative=_digits(ratio.value, 4),
        relative_at=(start + ratio.row, ratio.channel),
    )


def _digits(value: float, digits: int) -> float:
    """Significant digits: evidence keeps what decides, not what no two machines share."""
    return float(f"{value:.{digits}g}")


def _indices(mask: npt.ArrayLike, start: int) -> tuple[int, ...]:
    return tuple((np.flatnonzero(mask) + start).tolist())
