"""What verdicts say of the ANE's arithmetic, as the CPU executor simulates it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_ane.backends import Backend, SimulatingBackend
from pytest_ane.gates.verdict import Figure, Finding, Verdict
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares
from pytest_ane.mlprogram.errors import UnprovenError


def simulator(backend: Backend) -> SimulatingBackend:
    """A backend in the ANE's arithmetic; `UnprovenError` of a device, which has its own."""
    if (simulated := backend.simulated()) is None:
        raise UnprovenError(
            f"nothing was computed in arithmetic 'ane' ({SIMULATED}); measure it on pytest-ane's "
            "CPU executor"
        )
    return simulated


def in_arithmetic(
    verdict: Verdict, arithmetic: Arithmetic, rules: RuleShares, costs: Iterable[Figure]
) -> Verdict:
    """A verdict with what the arithmetic `costs`, and with its rules; one as typed as it is."""
    if arithmetic == "typed":
        return verdict
    return replace(
        verdict,
        figures=(*verdict.figures, *costs, *rule_figures(rules)),
        findings=(*verdict.findings, *unknown_rules(rules)),
        basis=SIMULATED,
    )


def rule_figures(rules: RuleShares) -> Iterator[Figure]:
    """Shares of multiply-accumulates and of operations, by how well their rules are known."""
    for name, label, shares in (
        ("products", "multiply-accumulates by rules", rules.shares_of_products),
        ("operations", "operations by rules", rules.shares_of_operations),
    ):
        text = ", ".join(f"{share:.1%} {grade}" for grade, share in shares.items() if share)
        if shares:
            yield Figure(name, text, label=label, shown=name == "products")
        for grade, share in shares.items():
            yield Figure(f"{name}.{grade}", share, "%", f"{label} that are {grade}")


def unknown_rules(rules: RuleShares) -> Iterator[Finding]:
    """A note on operations without a rule."""
    if rules.unknown:
        share = rules.shares_of_operations["unknown"]
        yield Finding(
            "note",
            f"{SIMULATED}: {share:.0%} of the operations have no known rule and ran as typed: "
            f"{', '.join(rules.unknown)}",
        )
