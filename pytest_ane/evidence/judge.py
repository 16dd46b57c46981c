"""Recorded measurements under today's policy, where they are from, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pytest_ane.evidence.statement import Statement, plain, to_data
from pytest_ane.gates.base import Subject
from pytest_ane.gates.registry import GATES
from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.arithmetic import SIMULATED

_LONGEST = 100


def judge(statement: Statement, subject: Subject) -> Verdict:
    """The verdict on a verified statement of this shard, or of this model; it names its origin."""
    gate = GATES[statement.gate]
    verdict = gate.judge(statement.measurement, gate.policy(subject.policy), subject)
    return with_origin(verdict, statement)


def with_origin(verdict: Verdict, statement: Statement) -> Verdict:
    """A verdict on what a statement holds, with where and when that was recorded."""
    return replace(
        verdict,
        origin=origin(statement),
        provenance=dict(verdict.provenance) | dict(statement.environment),
    )


def replayed(statement: Statement) -> bool:
    """Whether something else than Core ML itself answered."""
    return "native" in statement.environment


def simulated(statement: Statement) -> bool:
    """Whether the CPU executor computed it in the ANE's arithmetic."""
    named = statement.environment.get("arithmetic", "typed") != "typed"
    return named or getattr(statement.measurement, "arithmetic", "typed") != "typed"


def origin(statement: Statement) -> str:
    """`recorded 2026-11-21, Apple M4 Max, macOS 26.1, CPU_AND_NE`."""
    return ", ".join(filter(None, (f"recorded {statement.recorded:%Y-%m-%d}", machine(statement))))


def machine(statement: Statement) -> str:
    """`Apple M4 Max, macOS 26.1, CPU_AND_NE`, `replayed Apple M4 Max, ...`.

    Of what no device computed `simulated ANE (h16+)`.
    """
    if simulated(statement):
        return SIMULATED
    known = (statement.environment.get(key) for key in ("chip", "os", "compute_units"))
    return ("replayed " if replayed(statement) else "") + ", ".join(filter(None, known))


def changes(old: Statement, new: Statement) -> Iterator[str]:
    """One line for everything that differs, such as `cosine.min 0.981204 -> 0.980917`.

    Times of recording are left out: they always differ.
    """
    if old.subject != new.subject or old.gate != new.gate:
        yield f"{old.subject} {old.gate} -> {new.subject} {new.gate}"
    names = old.files.keys() | new.files.keys()
    if count := sum(old.files.get(name) != new.files.get(name) for name in names):
        yield f"{count} file{'s' if count > 1 else ''} changed, of {len(names)}"
    yield from _differences(old.environment, new.environment)
    yield from _differences(plain(old.asked), plain(new.asked), "asked ")
    if old.gate != new.gate:
        return
    gate, then, now = new.gate, old.measurement, new.measurement
    lines = list(GATES[gate].changes(then, now))
    yield from lines
    if not lines and to_data(gate, then) != to_data(gate, now):
        yield "single numbers differ, their figures do not"


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            yield f"{prefix}{key} {_shown(old.get(key))} -> {_shown(new.get(key))}"


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
