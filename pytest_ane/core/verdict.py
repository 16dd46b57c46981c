"""The verdict: a policy applied to a measurement. Always derived, never stored as truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "unproven"]
Gate = Literal["placement", "compression", "fidelity", "behaviour", "throughput"]


@dataclass(frozen=True)
class Verdict:
    """What a gate says of one shard (or, for behaviour, of one model).

    Attributes:
        gate: which of the gates speaks.
        subject: qualified shard id (`smollm2:L01`) or model name (`smollm2`).
        status: `passed`, `failed`, or `unproven` where nothing could be compared.
        summary: one line for the terminal table, without the subject.
        reasons: one sentence for each thing that is wrong; empty exactly when `passed`.
        facts: numbers and words for `user_properties`, keyed `ane.<fact>` by the plugin.
        details: lines shown in the failure section, most important first.
        provenance: where the numbers come from: backend, machine, versions, digests; keyed
            `ane.provenance.<key>`.
    """

    gate: Gate
    subject: str
    status: Status
    summary: str
    reasons: tuple[str, ...] = ()
    facts: dict[str, float | int | str] = field(default_factory=dict)
    details: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status == "passed") == bool(self.reasons):
            raise ValueError(f"a verdict gives reasons exactly when it is not passed: {self}")
