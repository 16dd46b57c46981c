"""Warnings about prompts that show few faults: all easy, or one text over and over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ane.gates.behaviour import BEHAVIOUR, Behaviour, PromptResult, blind_spots
from pytest_ane.manifest import Model, Prompt
from pytest_ane.mlprogram.metrics.logits import Position

ORDINARY = (9.0, 0.3, 0.9, 1.4, 5.0)
"""The reference's margins; the first position is left out."""
EASY = (0.1, 0.2, 4.8, 3.1)


def behaviour(*margins: Sequence[float | None]) -> Behaviour:
    prompts = [
        PromptResult(str(i), tuple(Position(0.999, 0.0, True, 0, margin=m) for m in row),
                     (), (), (), "", "")
        for i, row in enumerate(margins)
    ]  # fmt: skip
    return Behaviour(tuple(prompts), (), {})


def texts(*given: str | Sequence[int]) -> list[Prompt]:
    forms = ({"text": t} if isinstance(t, str) else {"ids": tuple(t)} for t in given)
    return [Prompt.model_validate({"name": f"p{i}", **form}) for i, form in enumerate(forms)]


@pytest.mark.parametrize(
    ("margins", "lead"),
    [
        ([EASY], "3.1"),
        ([EASY, (1.0, 2.5)], "2.5"),
        ([ORDINARY], ""),
        ([EASY, ORDINARY], ""),
        ([EASY, (1.0, 2.0)], ""),
        ([EASY, (7.0,), (7.0, None)], "3.1"),
        ([(7.0,), (None, None)], ""),
        ([], ""),
    ],
)
def test_a_set_that_is_easy_throughout(margins: list[Sequence[float]], lead: str) -> None:
    """At half of each prompt's positions the reference leads by more than 2 logits."""
    found = [*blind_spots(behaviour(*margins), texts("one"))]
    assert len(found) == bool(lead)
    for finding in found:
        assert finding.severity == "warned"
        assert finding.reason == (
            f"All golden prompts are easy: the reference leads by {lead} logits or more at half "
            "of their positions, where few faults change a token"
        )
        assert finding.remedy.startswith("add ordinary texts unlike each other, and chat")


JAPAN, PERU = "What is the capital of Japan?", "What is the capital of Peru?"
RIVER = "The Seine runs through Paris, and the Louvre holds the Mona Lisa."


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ([JAPAN, PERU], "1 of 2 golden prompts repeat"),
        ([JAPAN, JAPAN.upper() + "  ", RIVER, RIVER + " Yes."], "2 of 4 golden prompts repeat"),
        ([range(24), [*range(10), 77, *range(11, 24)]], "1 of 2 golden prompts repeat"),
        ([JAPAN], ""),
        ([JAPAN, RIVER], ""),
        ([JAPAN, PERU, RIVER], ""),
        ([range(24), range(100, 124), JAPAN], ""),
        (["a", "b", [1], [2]], ""),
    ],
)
def test_a_set_of_one_text(given: list[str | Sequence[int]], again: str) -> None:
    """Half of the prompts have an earlier one's text but for a word or two."""
    found = [*blind_spots(behaviour(ORDINARY), texts(*given))]
    assert [finding.severity for finding in found] == ["warned"] * bool(again)
    for finding in found:
        assert finding.reason.startswith(again)
        assert "'p1'" in finding.reason


def test_the_gate_s_verdict_has_the_warnings_and_passes() -> None:
    measured = behaviour(EASY, EASY)
    model = Model(name="m", family="llama", shards=(), prompts=tuple(texts(JAPAN, PERU)))
    policy = model.policy.behaviour.model_copy(update={"min_positions": 6, "min_greedy": 0})
    verdict = BEHAVIOUR.judge(measured, policy, model)
    assert verdict.status == "passed"
    assert len(verdict.warnings) == 2
