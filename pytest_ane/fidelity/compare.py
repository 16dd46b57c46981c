"""One output of one probe against its reference: every metric, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.fidelity.cases import Case
from pytest_ane.fidelity.comparison import GROUP, Comparison, Errors
from pytest_ane.fidelity.metrics import (
    Contributions,
    contributions,
    contributions_beside,
    cosine,
    finite_fraction,
    flat_cosine,
    group_cosines,
    max_abs_error,
    relative_l2,
    worst_abs_error,
    worst_rel_error,
    zeros,
)
from pytest_ane.sources import FloatArray

Wide = npt.NDArray[np.float64]


def compare(
    case: Case, name: str, actual: FloatArray, expected: FloatArray, beside: FloatArray | None
) -> Comparison:
    """Rows `[T, C]` of an output against the reference's.

    `beside` are those of the input whose component is taken out of both for want of a residual
    path that is known; None for nothing of the kind.
    """
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    zero = zeros(a, b, case.input_max)
    live, start = zero.live, case.start
    found = None
    if name in case.residual:
        found = contributions(a[live], b[live], case.residual[name][live])
    elif beside is not None:
        found = contributions_beside(a[live], b[live], beside[live])
    return Comparison(
        kind=case.kind,
        probe=case.name,
        output=name,
        length=case.length,
        input_max=case.input_max,
        cosines=tuple(cosine(a[live], b[live]).tolist()),
        positions=_indices(live, start),
        both_zero=_indices(zero.both, start),
        one_zero=_indices(zero.one, start),
        finite=finite_fraction(actual),
        error_max=max_abs_error(a, b),
        relative=_rounded(relative_l2(a[live], b[live]), 5),
        spoilt=_indices(~np.isfinite(a).all(axis=1), start),
        experts=tuple(case.routed[i] for i in np.flatnonzero(zero.one)) if case.routed else (),
        errors=_errors(a, b, live, start),
        **_contributed(found, np.flatnonzero(live) + start),
    )


def alone(case: Case, name: str, actual: FloatArray) -> Comparison:
    """Rows of an output of which the reference says nothing: whether they are finite."""
    zero = ~actual.any(axis=1)
    return Comparison(
        kind=case.kind,
        probe=case.name,
        output=name,
        length=case.length,
        input_max=case.input_max,
        cosines=(),
        positions=(),
        both_zero=_indices(zero, case.start),
        one_zero=(),
        finite=finite_fraction(actual),
        error_max=0.0,
        spoilt=_indices(~np.isfinite(actual).all(axis=1), case.start),
    )


def _contributed(found: Contributions | None, positions: npt.NDArray[Any]) -> dict[str, Any]:
    """Fields of a comparison; no cosine of what adds nothing."""
    if found is None:
        return {}
    adding = ~found.idle
    return {
        "contributions": tuple(round(x, 6) for x in found.cosines[adding].tolist()),
        "idle": tuple(positions[found.idle].tolist()),
        "residual": _significant(float(np.median(found.ratios[adding])), 4)
        if adding.any()
        else None,
    }


def _errors(a: Wide, b: Wide, live: npt.NDArray[np.bool_], start: int) -> Errors | None:
    if not (live.any() and a.size):
        return None
    groups = group_cosines(a[live], b[live], GROUP)
    lowest = int(np.argmin(groups))  # NaN counts as lowest.
    absolute, relative = worst_abs_error(a, b), worst_rel_error(a, b)
    return Errors(
        cosine=round(flat_cosine(a[live], b[live]), 6),
        group_cosine=round(float(groups[lowest]), 6),
        group=lowest * GROUP,
        absolute_at=(start + absolute.row, absolute.channel),
        relative=_significant(relative.value, 5),
        relative_at=(start + relative.row, relative.channel),
    )


def _rounded(values: Wide, digits: int) -> tuple[float, ...]:
    return tuple(_significant(value, digits) for value in values.tolist())


def _significant(value: float, digits: int) -> float:
    """Evidence keeps what decides, not digits that no two machines share."""
    return float(f"{value:.{digits}g}")


def _indices(mask: npt.ArrayLike, start: int) -> tuple[int, ...]:
    return tuple((np.flatnonzero(mask) + start).tolist())
