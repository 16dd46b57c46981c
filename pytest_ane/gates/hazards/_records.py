"""The record of a hazards measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pytest_ane.mlprogram.arithmetic import RuleShares

Hazard: TypeAlias = Literal[
    "sum", "order", "infinity", "softplus", "logsumexp", "dropped", "table", "late-scale"
]
Role: TypeAlias = Literal["", "scores", "values"]
"""Of a sum of products in attention: it yields queries, keys or values; or it sums the values."""


@dataclass(frozen=True)
class Peak:
    """One hazard of one operation, on the probe where it is greatest.

    Attributes:
        hazard: `sum`: largest |sum| of products, infinite where it overflowed.
            `order`: outputs that overflow in some orders of summation only.
            `infinity`: operands that are infinite or NaN, which the ANE takes for numbers.
            `softplus`: largest exp(x) + 1; `logsumexp`: largest sum of exp(x).
            `dropped`: share of sum |w x| that is lost, as products are dropped whole.
            `table`: error of an activation's table, root mean square relative to that of its exact
            results.
            `late-scale`: largest |sum| of integer codes, if their scale comes after the sum.
        op: name of the operation.
        kind: as MIL calls it.
        probe: name of the probe.
        value: as `hazard` says.
        count: outputs that overflowed; of `dropped` the share of the products that are not 0.
        role: in attention.
    """

    hazard: Hazard
    op: str
    kind: str
    probe: str
    value: float
    count: float = 0
    role: Role = ""


@dataclass(frozen=True)
class Hazards:
    """What the ANE's arithmetic met on the probes of a shard.

    Attributes:
        peaks: of each hazard and operation.
        rules: by which rules the operations ran.
        probes: how many were run.
        provenance: backend, versions, machine, arithmetic, and the artifact's digest.
    """

    peaks: tuple[Peak, ...]
    rules: RuleShares
    probes: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
