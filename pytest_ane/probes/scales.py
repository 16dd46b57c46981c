"""How large a package's inputs may grow before fp16, or its function, gives way.

Inputs of which nobody says a range are drawn near 1. There a norm that squares in fp16, which
overflows from 256 on, and values that are clipped at 100 show in nothing. So one probe is scaled,
decade by decade up to fp16's range, and run by the CPU executor as typed and in float32; between
the last decade that is right and the first that is not, the edge is found by bisection.

Programs of other operations are held to each other at these sizes, and at every length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import inf, sqrt
from pathlib import Path

import numpy as np

from pytest_ane.backends import CpuBackend, Runner
from pytest_ane.manifest import Input, Probes
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.metrics.tensors import relative_l2
from pytest_ane.mlprogram.model import counterpart
from pytest_ane.mlprogram.records import Pipeline
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget import run_cases, total_error
from pytest_ane.probes.inputs import Domain
from pytest_ane.probes.overflow import first_overflow
from pytest_ane.probes.package import length_cases, package_cases
from pytest_ane.probes.seeded import gaussian, generator

SWEEP = 3
"""Version of the sweep, raised when the same package gives another edge."""
DECADES = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, fp16.MAX)
"""Sizes that an input of unknown range is scaled to."""
_STEPS = 10
"""Halvings of a decade, to 0.2 %."""
_ROUNDS, _DEPARTS = 0.1, 0.2
"""Least error, relative to what the package adds, that is one: of rounding, as `max-rounding` has
it, and of the function. Both may be twice what they are at the first two decades."""
_WRONG = 0.7
"""An error at those decades that allows no more of it later."""
_DISTURBED, _STEADY = 2.0**-18, 1e-3
"""What inputs are disturbed by, and what that may make of a row: beyond, rounding decides."""


@dataclass(frozen=True)
class Edge:
    """Up to which size of its largest input a package is right.

    Attributes:
        holds: the largest magnitude that was right; fp16's largest where all were.
        how: what becomes of it beyond: `overflows`, `rounds` or `departs` from its reference.
        op: the first operation that fp16 does not hold there, as of an `ErrorBudget`.
    """

    holds: float
    how: str = ""
    op: str = ""


def find_edge(
    package: Path,
    function: str | None,
    cases: Sequence[Case],
    reference: Path | None = None,
    golden: Mapping[str, Domain] | None = None,
) -> Edge | None:
    """The edge of a package, by the first probe with an input of unknown range; None without one.

    The `reference` is a package; without one only rounding is looked at. Of `golden` tensors, whose
    inputs have these domains, the shortest probe is scaled, where one of its inputs alone is of
    unknown range: of several, nobody says which is a mask. None as well where the runs do not fit
    the memory or time that is allowed.
    """
    if golden is None:
        fit = [case for case in cases if case.kind == "gaussian" and free_inputs(case)][:1]
    else:
        drawn = (replace(case, domains=golden) for case in cases)
        fit = sorted((c for c in drawn if len(free_inputs(c)) == 1), key=lambda c: c.length)
    with suppress(AneError):
        return _edge(package, function, fit[0], reference) if fit else None
    return None


def _edge(package: Path, function: str | None, case: Case, reference: Path | None) -> Edge:
    typed, exact = (CpuBackend(p).load(package, function) for p in ("as-typed", "float32"))
    oracle = None
    if reference is not None:
        oracle = CpuBackend("float32").load(reference, counterpart(reference, function))

    @cache
    def errors(size: float) -> tuple[float, float]:
        probe = scaled(case, size)
        rounding = _apart(probe, exact, typed)
        return rounding, 0.0 if oracle is None else _apart(probe, oracle, exact)

    first = [errors(size) for size in DECADES[:2]]
    known = (max(pair) for pair in zip(*first, strict=True))
    bounds = [max(least, 2 * e if e < _WRONG else 0.0)
              for least, e in zip((_ROUNDS, _DEPARTS), known, strict=True)]  # fmt: skip

    def faults(size: float) -> list[bool]:
        return [not e <= bound for e, bound in zip(errors(size), bounds, strict=True)]

    good, bad = _between(lambda size: any(faults(size)))
    if bad is None:
        return Edge(good)
    if not faults(bad)[0]:
        return Edge(good, "departs")
    model = typed.model
    op = "" if isinstance(model, Pipeline) else first_overflow(model, [scaled(case, bad)])
    return Edge(good, "overflows" if op else "rounds", op)


def _between(wrong: Callable[[float], bool]) -> tuple[float, float | None]:
    """The largest size that is right, to three digits, and one above it that is wrong."""
    at = next((i for i, size in enumerate(DECADES) if wrong(size)), None)
    if at is None:
        return DECADES[-1], None
    low, high = DECADES[at - 1] if at else 0.0, DECADES[at]
    for _ in range(_STEPS if at else 0):
        middle = sqrt(low * high)
        low, high = (low, middle) if wrong(middle) else (middle, high)
    digits = 10.0 ** (len(str(int(low))) - 3)
    return float(f"{low // digits * digits:.3g}"), high


def free_inputs(case: Case) -> list[str]:
    """Inputs of unknown range."""
    return [name for name, domain in case.domains.items() if domain.input is None]


def scaled(case: Case, size: float) -> Case:
    """The probe with its inputs of unknown range scaled, so that the largest has this size."""
    free = free_inputs(case)
    largest = max(float(np.abs(call[n]).max(initial=0.0)) for call in case.calls for n in free)
    factor = np.float32(size / (largest or 1.0))
    calls = ({n: x * factor if n in free else x for n, x in call.items()} for call in case.calls)
    name = f"{case.name} up to {size:,g}"
    return replace(case, name=name, calls=tuple(calls), input_max=size)


def _apart(case: Case, right: Runner, other: Runner) -> float:
    """How far a run is from another, relative to what that one adds; infinite beyond float32."""
    (expected,) = run_cases(right, [case])
    if not all(np.isfinite(rows).all() for rows in expected.rows.values()):
        return inf
    (run,) = run_cases(other, [case])
    shared = {
        n: x for n, x in expected.rows.items() if n in run.rows and run.rows[n].shape == x.shape
    }
    return total_error([replace(case, expected=shared)], [run]).greatest


def further_cases(
    artifact: Path, plain: Path, probes: Probes, tables: Mapping[str, Input], function: str | None
) -> list[Case]:
    """Seeded probes, every length, and inputs of unknown range up to fp16's.

    The uncompressed package `plain` answers, in float32. What it answers with NaN or infinity is
    left out, and what rounding decides there, such as a softmax of huge numbers.
    """
    asked = artifact, plain, probes, tables, function
    cases = [*package_cases(CpuBackend("float32"), *asked), *length_cases(*asked)]
    large = [scaled(case, size) for case in cases[:1] if free_inputs(case) for size in DECADES[1:]]
    runner = CpuBackend("float32").load(plain, counterpart(plain, function))
    runs = run_cases(runner, large)
    large = [replace(c, expected=run.rows) for c, run in zip(large, runs, strict=True)]
    return [case for case in (*cases, *large) if _is_steady(case, runner)]


def _is_steady(case: Case, runner: Runner) -> bool:
    if not all(np.isfinite(rows).all() for rows in case.expected.values()):
        return False
    (run,) = run_cases(runner, [replace(case, calls=tuple(map(_disturbed, case.calls)))])
    apart = (relative_l2(run.rows[name], rows) for name, rows in case.expected.items())
    return all(bool((each <= _STEADY).all()) for each in apart)


def _disturbed(call: Arrays) -> Arrays:
    floats = {name: x for name, x in call.items() if x.dtype.kind == "f"}
    noise = {n: gaussian(generator("disturbed", n), x.shape) for n, x in floats.items()}
    return {**call, **{n: x + np.float32(_DISTURBED) * noise[n] * x for n, x in floats.items()}}
