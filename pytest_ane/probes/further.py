"""Further cases on which a program is held to its uncompressed one, where these are not alike.

Two programs of the same operations are one function at every length and size. Of others nobody
knows: one may give another result at T = 17 alone, or clip what enters at 100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_ane.backends import CpuBackend, Runner
from pytest_ane.manifest import Input, Probes
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.metrics.tensors import relative_l2
from pytest_ane.mlprogram.model import counterpart
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget import run_cases
from pytest_ane.probes.package import length_cases, package_cases
from pytest_ane.probes.scales import DECADES, free_inputs, scaled
from pytest_ane.probes.seeded import gaussian, generator

_DISTURBED, _STEADY = 2.0**-18, 1e-3
"""What inputs are disturbed by, and what that may make of a row: beyond, rounding decides."""


def further_cases(
    artifact: Path,
    plain: Path,
    probes: Probes,
    tables: Mapping[str, Input],
    function: str | None,
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
