"""Verdicts of the fidelity gate on comparisons made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pytest_ane.gates.fidelity import Comparison, Fidelity, judge
from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.manifest.policy import FidelityPolicy

NAN = math.nan
GOOD = Comparison(
    kind="gaussian", probe="gaussian T=2 #0", output="y", length=2, input_max=4.25,
    cosines=(0.999, 0.998), positions=(0, 1), both_zero=(), one_zero=(), finite=1.0,
    error_max=0.125, relative=(0.01, 0.1),
)  # fmt: skip
CAPTURED = replace(
    GOOD, kind="captured", probe="captured chat T=2", positions=(1, 2), input_max=21953.4
)

BLOCK = replace(CAPTURED, contributions=(0.95, 0.9), residual=5.0)


def comparison(*cosines: float, **changes: Any) -> Comparison:
    """A captured probe with these cosines at positions 1, 2, ..."""
    positions = tuple(range(1, len(cosines) + 1))
    relative = (0.01,) * len(cosines)
    return replace(CAPTURED, cosines=cosines, positions=positions, relative=relative, **changes)


def of(
    *comparisons: Comparison, compared: bool = True, same: bool | None = None, **policy: Any
) -> Verdict:
    fidelity = Fidelity(comparisons, compared, {}, same_module=same)
    return judge(fidelity, FidelityPolicy.model_validate(policy), "smollm2:L01")


def passing(finding: Finding) -> float:
    """The limit that would have passed, as the reason's end names it."""
    return float(finding.reason.rpartition(" = ")[2].removesuffix(" would have passed"))
