"""The words of a forecast."""

from __future__ import annotations

from pytest_ane.gates.placement import Finding, Forecast, explain
from pytest_ane.gates.placement.rules import ALL_RULES
from pytest_ane.gates.placement.text import by_rule, plural, reason

KINDS = (
    Finding("R064", "ineligible", "w1", "conv", "Its weight has blocks.", "main", 0),
    Finding("R001", "ineligible", "cell", "lstm", "Recurrent ops have no kernel.", "decode", 1),
    Finding("R011", "warned", "sum", "cumsum", "`cumsum` is placed on the CPU.", "main", 2),
)


def test_explain_goes_from_the_outcome_through_the_rules_to_the_limits_of_a_forecast() -> None:
    lines = list(explain(Forecast(1, {"conv": 1, "lstm": 1, "cumsum": 1}, {"const": 1}, KINDS)))
    assert [line for line in lines if not line.startswith("  ")] == [
        "ineligible (forecast) · conv 0/1 · compute 3 ops, 2 ineligible, 1 warned · "
        "left out: 1 const",
        "compute ops: 1 conv, 1 lstm, 1 cumsum",
        "R001 · ineligible · Recurrent ops have no kernel on the ANE at any precision.",
        "R064 · ineligible · The ANE accepts scales per output channel or per tensor, not per "
        "block.",
        "R011 · warned · `cumsum` is placed on the CPU.",
        "This is a forecast from documented rules: which device runs an op, only a plan recorded "
        "on a Mac can say.",
    ]
    assert "  lstm `cell` in decode: Recurrent ops have no kernel." in lines
    assert "  conv `w1`: Its weight has blocks." in lines
    assert sum(line.startswith("  source: ") for line in lines) == 3
    assert sum(line.startswith("  fix: ") for line in lines) == 3


def test_how_much_work_the_ane_takes_is_told_of_an_eligible_program() -> None:
    *_, note, work = explain(Forecast(1, {"conv": 1}, {}))
    assert note.startswith("This is a forecast")
    assert work.startswith("Core ML may keep a small program on the CPU even where every op is")


def test_what_a_rule_says_of_every_op_is_said_once() -> None:
    title = "Recurrent ops have no kernel on the ANE at any precision."
    found = Finding("R001", "ineligible", "cell", "lstm", title, "main", 0)
    lines = list(explain(Forecast(1, {"lstm": 1}, {}, (found,))))
    assert lines[2:4] == [f"R001 · ineligible · {title}", "  lstm `cell`"]


def test_an_op_comes_before_the_casts_that_are_there_for_it() -> None:
    kinds = ("cast", "batch_norm", "cast")
    found = tuple(
        Finding("R021", "ineligible", f"o{i}", kind, "It computes fp32.", "main", i)
        for i, kind in enumerate(kinds)
    )
    ((_, ordered),) = by_rule(iter(found))
    assert [finding.op for finding in ordered] == ["o1", "o0", "o2"]
    assert reason("R021", ordered).startswith("R021: batch_norm `o1` (and 2 more) is ineligible:")


def test_explain_applies_the_size_rule_of_the_system() -> None:
    found = Forecast(2**31, {"conv": 1}, {})
    assert "R076" not in "\n".join(explain(found, os="macOS 26"))
    assert "macOS 27 takes 1 GiB at most." in "\n".join(explain(found, os="macOS 27"))


def test_explain_lists_every_finding() -> None:
    many = tuple(
        Finding("R001", "ineligible", f"c{i}", "lstm", "No.", "main", i) for i in range(40)
    )
    lines = list(explain(Forecast(1, {"lstm": 40}, {}, many)))
    assert sum(line.startswith("  lstm") for line in lines) == 40


def test_a_rule_of_a_newer_version_is_still_told() -> None:
    newer = Finding("R999", "ineligible", "y", "conv", "It cannot.", "main", 0)
    lines = list(explain(Forecast(1, {"conv": 1}, {}, (newer,))))
    assert "R999 · ineligible · a rule this version does not have." in lines
    assert "  conv `y`: It cannot." in lines


def test_no_rule_speaks_of_residency_or_of_shares() -> None:
    for rule in ALL_RULES:
        words = f"{rule.title} {rule.matches} {rule.consequence} {rule.scope} {rule.fix}".lower()
        assert "resident" not in words
        assert "%" not in words


def test_plural() -> None:
    assert [plural(n, "op") for n in (0, 1, 2, 1200)] == ["0 ops", "1 op", "2 ops", "1,200 ops"]
