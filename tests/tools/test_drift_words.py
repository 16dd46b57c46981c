"""The report of a drift: its verdict and its charts."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from pytest_ane.gates.verdict import Finding, Verdict
from pytest_ane.tools.drift import Causes, ShardEffect, sentence

Status = Literal["passed", "failed", "unproven"]


def verdict(status: Status) -> Verdict:
    return Verdict(
        "behaviour", "m", findings=() if status == "passed" else (Finding("failed", "Why"),)
    )


def causes(stack: Status, *parts: tuple[str, float, bool], reference: Status = "passed") -> Causes:
    total = sum(kl for _, kl, _ in parts)
    shares = [ShardEffect(name, kl, kl / total, breaks) for name, kl, breaks in parts]
    found = map(verdict, (stack, reference))
    return Causes(*found, tuple(shares))


EVEN = [(f"L{i:02d}", 1.0, False) for i in range(10)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            causes("failed", ("L07", 9, True), ("L01", 1, False)),
            "L07 breaks it: it fails alone in an otherwise exact stack; all others together have "
            "10% of the KL.",
        ),
        (
            causes("failed", ("L07", 9, True), ("L03", 9, True), ("L01", 2, False)),
            "L07 and L03 break it: each fails alone in an otherwise exact stack; all others "
            "together have 10% of the KL.",
        ),
        (
            causes("failed", *((name, kl, True) for name, kl, _ in EVEN)),
            "L00, L01, L02, L03 and 6 more break it: each fails alone in an otherwise exact stack; "
            "all others together have 0% of the KL.",
        ),
        (
            causes("failed", *EVEN),
            "Gradual, no single shard fails alone: L00 has the most of the KL (10%), and 5 of 10 "
            "make up half.",
        ),
        (
            causes("failed", ("L07", 6, False), ("L01", 4, False)),
            "Gradual, no single shard fails alone: L07 contributes most (60% of the KL).",
        ),
        (
            causes("failed", ("L27", 12, False), ("L28", 8, False), *EVEN, *EVEN[:8]),
            "Gradual, no single shard fails alone: L27 and L28 contribute most (53% of the KL).",
        ),
        (
            causes("passed", *EVEN),
            "No shard breaks it: L00 has the most of the KL (10%), and 5 of 10 make up half.",
        ),
        (
            causes("passed", ("L07", 9, True), ("L01", 1, False)),
            "L07 breaks it: it fails alone in an otherwise exact stack; all others together have "
            "10% of the KL, and the stack as it is passes all the same.",
        ),
        (
            causes("failed", *EVEN, reference="unproven"),
            "The reference itself does not meet the policy: Why",
        ),
    ],
)
def test_the_sentence(result: Causes, expected: str) -> None:
    assert sentence(result) == expected


def test_an_undefined_kl() -> None:
    """Shares of an undefined sum are left out."""
    parts = (ShardEffect("L07", math.nan, math.nan, True), ShardEffect("L01", 0.5, math.nan, False))
    assert sentence(Causes(verdict("failed"), verdict("passed"), parts)) == (
        "L07 breaks it: it fails alone in an otherwise exact stack."
    )


def test_a_stack_without_any_error() -> None:
    parts = (ShardEffect("L00", 0.0, math.nan, False), ShardEffect("L01", 0.0, math.nan, False))
    found = Causes(verdict("passed"), verdict("passed"), parts)
    assert sentence(found) == "No shard breaks it: no KL at all."
