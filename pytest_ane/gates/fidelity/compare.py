"""One output of one probe against its reference: every metric, in float64.

Rows are taken in blocks that stay in the processor's cache: of a head's logits, 12,288 a row, the
temporaries of a whole probe would cost more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_ane.core.arrays import FloatArray
from pytest_ane.gates.fidelity.comparison import GROUP, Comparison, Errors
from pytest_ane.metrics.contribution import Contributions, contributions, contributions_off_input
from pytest_ane.metrics.cosine import (
    Zeros,
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
from pytest_ane.probes.cases import Case

Wide = npt.NDArray[np.float64]
_BLOCK = 1 << 14
"""Elements of a block: 128 kB in float64."""


class _Block(NamedTuple):
    """What is known of some rows; arrays but for `zero` are of live ones."""

    zero: Zeros
    finite: npt.NDArray[np.bool_]
    cosines: Wide
    relative: Wide
    added: Contributions | None
    products: Wide
    absolute: WorstError
    ratio: WorstError


def compare(
    case: Case, name: str, actual: FloatArray, expected: FloatArray, beside: FloatArray | None
) -> Comparison:
    """Rows `[T, C]` of an output, C > 0, against the reference's.

    `beside` are those of the input whose component is taken out of both for want of a residual
    path that is known; None for nothing of the kind. Beside `extreme` inputs what a shard
    adds is lost in the rounding of the sum, so it is not compared.
    """
    exact = name in case.residual
    path = case.residual[name] if exact else beside
    if case.kind == "extreme":
        path = None
    rows, channels = actual.shape
    size = max(_BLOCK // max(channels, 1), 1)
    blocks = [
        _block(
            actual[i : i + size],
            expected[i : i + size],
            None if path is None else path[i : i + size],
            taken=contributions if exact else contributions_off_input,
            input_max=case.input_max,
            start=i,
        )
        for i in range(0, rows, size)
    ]
    zero = Zeros(*(_joined([part.zero[i] for part in blocks]) for i in range(2)))
    live = zero.live
    positions = np.flatnonzero(live) + case.start
    return Comparison(
        **_named(case, name, actual),
        cosines=tuple(round(x, 9) for x in _joined([b.cosines for b in blocks]).tolist()),
        positions=tuple(positions.tolist()),
        both_zero=_indices(zero.both, case.start),
        one_zero=_indices(zero.one, case.start),
        error_max=float(np.max([b.absolute.value for b in blocks], initial=0.0)),
        relative=tuple(_digits(x, 4) for x in _joined([b.relative for b in blocks]).tolist()),
        spoilt=_indices(~_joined([b.finite for b in blocks]), case.start),
        experts=tuple(case.routed[i] for i in np.flatnonzero(zero.one)) if case.routed else (),
        errors=_errors(blocks, case.start) if live.any() else None,
        **_contributed([b.added for b in blocks if b.added], positions),
    )


def alone(case: Case, name: str, actual: FloatArray) -> Comparison:
    """Rows of an output of which the reference says nothing: whether they are finite."""
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


def _block(
    actual: FloatArray,
    expected: FloatArray,
    path: FloatArray | None,
    *,
    taken: Callable[..., Contributions],
    input_max: float,
    start: int,
) -> _Block:
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    zero = zeros(a, b, input_max)
    absolute, ratio = (worst(a, b) for worst in (worst_abs_error, worst_rel_error))
    finite = np.asarray(np.isfinite(a).all(axis=1))
    live = zero.live
    if not live.all():
        a, b, path = a[live], b[live], None if path is None else path[live]
    return _Block(
        zero,
        finite,
        cosine(a, b),
        relative_l2(a, b),
        None if path is None else taken(a, b, path),
        group_products(a, b, GROUP),
        absolute._replace(row=start + absolute.row),
        ratio._replace(row=start + ratio.row),
    )


def _contributed(parts: Sequence[Contributions], positions: npt.NDArray[Any]) -> dict[str, Any]:
    """Fields of a comparison; no cosine of what adds nothing."""
    if not parts:
        return {}
    cosines, idle, ratios, single = (_joined([part[i] for part in parts]) for i in range(4))
    return {
        "contributions": tuple(round(x, 6) for x in cosines[~idle].tolist()),
        "idle": tuple(positions[idle].tolist()),
        "one_adds": tuple(positions[single].tolist()),
        "residual": None if idle.all() else _digits(float(np.median(ratios[~idle])), 4),
    }


def _errors(blocks: Sequence[_Block], start: int) -> Errors:
    products = np.sum([block.products for block in blocks], axis=0)
    groups = group_cosines(products)
    lowest = int(np.argmin(groups))  # NaN counts as lowest, and below as greatest.
    absolute, ratio = (
        of[int(np.argmax([one.value for one in of]))]
        for of in ([block.absolute for block in blocks], [block.ratio for block in blocks])
    )
    return Errors(
        cosine=round(flat_cosine(products), 6),
        group_cosine=round(float(groups[lowest]), 6),
        group=lowest * GROUP,
        absolute_at=(start + absolute.row, absolute.channel),
        relative=_digits(ratio.value, 4),
        relative_at=(start + ratio.row, ratio.channel),
    )


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def _digits(value: float, digits: int) -> float:
    """Significant digits: evidence keeps what decides, not what no two machines share."""
    return float(f"{value:.{digits}g}")


def _indices(mask: npt.ArrayLike, start: int) -> tuple[int, ...]:
    return tuple((np.flatnonzero(mask) + start).tolist())
