"""One verdict of two runs: what stands once, what is labelled, and what is left out."""

from __future__ import annotations

from pytest_ane.gates.arithmetics import joined, missing
from pytest_ane.gates.verdict import Figure, Finding, Table, Verdict
from pytest_ane.mlprogram.arithmetic import RuleShares

TABLE = Table("probes", (), ())
RULES = RuleShares({"recorded": 3, "unknown": 1}, {"recorded": 100}, unknown=("softmax",))
COSTS = (Figure("engine.rms", 0.01, label="simulated ANE (h16+) costs"),)


def verdict(cosine: float, *findings: Finding) -> Verdict:
    figures = (
        Figure("cosine.min", cosine, label="cosine", limit=0.97, good="above", shown=True),
        Figure("finite", 1.0, "%", "finite", shown=True),
        Figure("algebra.max", 0.001, label="algebra"),
    )
    return Verdict("fidelity", "m:L00", figures, findings, (TABLE,), {"backend": "cpu"})


WRONG = Finding("failed", "wrong function", figure="algebra.max")
BELOW = Finding("failed", "below min-cosine", figure="cosine.min")


def both(arithmetic: tuple[str, ...], *findings: Finding) -> Verdict:
    right, wrong = verdict(0.99, WRONG), verdict(0.96, WRONG, *findings)
    return joined(right, wrong, arithmetic, ("algebra",), RULES, COSTS)  # type: ignore[arg-type]


def test_both_have_their_figures_under_names_of_their_own() -> None:
    made = both(("typed", "ane"))
    assert made.values == {
        "cosine.min": 0.99,
        "finite": 1.0,
        "algebra.max": 0.001,
        "ane.cosine.min": 0.96,
        "ane.finite": 1.0,
        "engine.rms": 0.01,
        "ane.products": "100.0% recorded",
        "ane.products.recorded": 1.0,
        "ane.products.fitted": 0.0,
        "ane.products.inferred": 0.0,
        "ane.products.unknown": 0.0,
        "ane.operations": "75.0% recorded, 25.0% unknown",
        "ane.operations.recorded": 0.75,
        "ane.operations.fitted": 0.0,
        "ane.operations.inferred": 0.0,
        "ane.operations.unknown": 0.25,
    }
    labels = [figure.label for figure in made.figures if figure.name.startswith("ane.cosine")]
    assert labels == ["simulated ANE (h16+) cosine"]
    assert [f.shown for f in made.figures if f.name == "ane.finite"] == [False]
    assert made.provenance == {"backend": "cpu", "arithmetic": "typed, simulated ANE (h16+)"}


def test_a_finding_of_both_stands_once_and_one_of_the_ane_is_labelled() -> None:
    failed = [f for f in both(("typed", "ane"), BELOW).findings if f.severity == "failed"]
    assert [(f.reason, f.figure) for f in failed] == [
        ("wrong function", "algebra.max"),
        ("simulated ANE (h16+): below min-cosine", "ane.cosine.min"),
    ]


def test_what_has_no_rule_is_named() -> None:
    (note,) = (f.reason for f in both(("ane",)).findings if f.severity == "note")
    assert note == (
        "simulated ANE (h16+): 25% of the operations have no known rule and ran as typed: softmax"
    )


def test_of_a_run_that_is_not_judged_only_what_is_common_stays() -> None:
    typed, ane = verdict(0.9, WRONG, BELOW), verdict(0.99, WRONG)
    made = joined(typed, ane, ("ane",), ("algebra",), RuleShares(), ())
    assert [f.name for f in made.figures] == ["algebra.max", "ane.cosine.min", "ane.finite"]
    assert [f.reason for f in made.reasons] == ["wrong function"]
    assert made.provenance["arithmetic"] == "simulated ANE (h16+)"


def test_nothing_computed_in_it_is_unproven() -> None:
    made = missing(verdict(0.99))
    assert made.status == "unproven"
    assert (
        made.reasons[0].reason == "Nothing was computed in arithmetic 'ane' (simulated ANE (h16+))"
    )
