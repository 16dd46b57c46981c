"""One verdict of two runs: in the program's own types, and in the ANE's arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from pytest_ane.gates.verdict import Figure, Finding, Limits, Verdict
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares

PREFIX = "ane."
"""Of the names of figures and tables that hold in the ANE's arithmetic alone."""


def joined(
    typed: Verdict,
    ane: Verdict,
    arithmetic: Collection[Arithmetic],
    common: tuple[str, ...],
    rules: RuleShares,
    costs: Iterable[Figure],
) -> Verdict:
    """The verdict in the arithmetics that are asked for; findings that both have stand once.

    Args:
        typed: of the run as the program's types say.
        ane: of the same probes in the ANE's arithmetic.
        arithmetic: which of both are judged.
        common: how the names of figures begin that do not depend on the arithmetic.
        rules: by which rules the second ran.
        costs: how far it is from the first.
    """
    whole = "typed" in arithmetic
    return replace(
        typed,
        figures=(
            *(f for f in typed.figures if whole or f.name.startswith(common)),
            *(_simulated(f, whole) for f in ane.figures if not f.name.startswith(common)),
            *costs,
            *(replace(f, label=f"{SIMULATED} {f.label}") for f in rule_figures(rules)),
        ),
        findings=(
            *(f for f in typed.findings if whole or f in ane.findings),
            *(_prefixed(f, common) for f in ane.findings if f not in typed.findings),
            *unknown_rules(rules),
        ),
        tables=(
            *(t for t in typed.tables if whole or t in ane.tables),
            *(
                replace(table, title=f"{table.title} ({SIMULATED})", name=f"{PREFIX}{table.name}")
                for table in ane.tables
                if table not in typed.tables
            ),
        ),
        provenance={**typed.provenance, "arithmetic": ", ".join(map(_name, arithmetic))},
    )


def joined_limits(
    typed: Limits, ane: Limits, arithmetic: Collection[Arithmetic], common: tuple[str, ...]
) -> Limits:
    """What a policy asks of the figures of `joined`, and of those of a device; arguments alike."""
    simulated = {f"{PREFIX}{n}": bound for n, bound in ane.items() if not n.startswith(common)}
    return {**typed, **(simulated if "ane" in arithmetic else {})}


def rule_figures(rules: RuleShares) -> Iterator[Figure]:
    """Shares of multiply-accumulates and of operations, by how well their rules are known."""
    for name, label, shares in (
        ("products", "multiply-accumulates", rules.shares_of_products),
        ("operations", "operations", rules.shares_of_operations),
    ):
        text = ", ".join(f"{share:.1%} {grade}" for grade, share in shares.items() if share)
        if shares:
            label = f"{label} by rules"
            yield Figure(f"{PREFIX}{name}", text, label=label, shown=name == "products")
        for grade, share in shares.items():
            yield Figure(f"{PREFIX}{name}.{grade}", share, "%", f"{label} that are {grade}")


def unknown_rules(rules: RuleShares) -> Iterator[Finding]:
    """A note on what has no rule."""
    if rules.unknown:
        share = rules.shares_of_operations["unknown"]
        yield Finding(
            "note",
            f"{SIMULATED}: {share:.0%} of the operations have no known rule and ran as typed: "
            f"{', '.join(rules.unknown)}",
        )


def missing(verdict: Verdict) -> Verdict:
    """A verdict on a measurement that lacks the ANE's arithmetic, though it was asked for."""
    finding = Finding(
        "unproven",
        f"Nothing was computed in arithmetic 'ane' ({SIMULATED})",
        remedy="measure it again on pytest-ane's CPU executor",
    )
    return replace(verdict, findings=(finding, *verdict.findings))


def _name(arithmetic: Arithmetic) -> str:
    return SIMULATED if arithmetic == "ane" else arithmetic


def _simulated(figure: Figure, whole: bool) -> Figure:
    """A figure under another name; beside the typed ones only those with a limit are shown."""
    label = f"{SIMULATED} {figure.label}".rstrip()
    shown = figure.shown and (not whole or figure.limit is not None)
    return replace(figure, name=f"{PREFIX}{figure.name}", label=label, shown=shown)


def _prefixed(finding: Finding, common: tuple[str, ...]) -> Finding:
    """A finding that the ANE's arithmetic alone has."""
    figure = finding.figure
    return replace(
        finding,
        reason=f"{SIMULATED}: {finding.reason}",
        kind=f"{finding.kind} ({SIMULATED})" if finding.kind else "",
        figure=figure if not figure or figure.startswith(common) else f"{PREFIX}{figure}",
    )
