"""Tables of the behaviour gate that the terminal does not print: positions, texts, drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.gates.verdict import Cell, Verdict
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.metrics.logits import Position
from pytest_ane.probes.exact_chain import StackState
from pytest_ane.report.verdict import details, to_json
from tests.gates.behaviour.test_judge import ALONE, FIRST, GOOD, NAN, OTHER, SAME, of

PIECES = ("Once", " upon", " a", " time")
DRIFT = (StackState("L00", 0.05, 0.999), StackState("L01", 0.123456789, None))


def rows(verdict: Verdict, name: str) -> Sequence[Sequence[Cell]]:
    table = verdict.table(name)
    assert not table.listed
    return table.rows


def test_every_position_has_text_numbers_and_whether_it_is_bad() -> None:
    low = Position(0.123456789, 1.23456789, True, 0)
    prompt = replace(GOOD, positions=(FIRST, SAME, low, OTHER), pieces=PIECES)
    assert rows(of(prompt), "positions") == (
        ("facts", 0, "Once", 9.0, "no", 0.5, "no"),
        ("facts", 1, " upon", 0.01, "yes", 0.999, "no"),
        ("facts", 2, " a", 1.2346, "yes", 0.12346, "yes"),
        ("facts", 3, " time", 0.03, "no", 0.95, "yes"),
    )


def test_positions_that_are_undefined_are_bad_and_near_ties_are_not() -> None:
    undefined = Position(NAN, NAN, False, 0)
    found = rows(of(replace(GOOD, positions=(undefined, SAME))), "positions")
    assert [row[-1] for row in found] == ["yes", "no"]
    assert {row[2] for row in found} == {None}
    tie = replace(OTHER, margin=0.1)
    assert rows(of(replace(GOOD, positions=(FIRST, SAME, tie))), "positions")[2][-1] == "no"


def test_a_text_that_is_no_character_is_escaped_in_json() -> None:
    verdict = of(replace(GOOD, pieces=("\ufffd", "\x1b[31m", "\u202e", "<b>")))
    (table,) = (t for t in to_json(verdict)["tables"] if t["name"] == "positions")
    texts = [row[2] for row in table["rows"]]
    assert texts[0] == "\ufffd"
    assert texts[3] == "<b>"
    assert all(text.isprintable() for text in texts)


def test_greedy_text_stands_beside_the_reference_s() -> None:
    other = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    assert rows(of(other), "texts") == (("facts", " a x c", " a b c", 1),)


def test_the_drift_in_running_order_beside_each_shard_alone() -> None:
    behaviour = Behaviour((GOOD,), ALONE, {}, drift=DRIFT)
    policy = BehaviourPolicy.model_validate({"min-positions": 1})
    verdict = judge(behaviour, policy, "m")
    assert rows(verdict, "drift") == (("L00", 0.05, 0.999, 0.05), ("L01", 0.12346, None, 0.2))
    assert "hidden states" not in "\n".join(details(verdict))
    assert of(GOOD).table("drift") is None
