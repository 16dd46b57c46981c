"""Espresso's log."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import PlanError
from pytest_ane.gates.placement.plans import summarise
from pytest_ane.gates.placement.plans.espresso import read
from tests.gates.placement.plans.samples import ESPRESSO


def test_estimates_and_reasons() -> None:
    plan = read(ESPRESSO)
    (operation,) = plan.functions[0].operations
    assert (operation.name, operation.op, operation.preferred) == ("y_cast_fp16", "conv", None)
    assert operation.extra == {"gFlopCnt": "0.5", "Bound": "Memory", "Runtime": "0.0123"}
    (message,) = plan.messages
    assert message.meaning == (
        "op 12, slice_update: The ANE updates slices only as part of a state."
    )
    assert (message.line, message.failure) == (2, True)
    assert summarise(plan).outcome == "inconclusive"


def test_an_unknown_reason_is_shown_as_it_is() -> None:
    (message,) = read("Unsupported op 3 (foo): because").messages
    assert message.text == "Unsupported op 3 (foo): because"
    assert message.meaning == "op 3, foo: The ANE cannot take it."


@pytest.mark.parametrize(
    ("text", "words"),
    [("[CostModelFeature],a", "line 1 is cut off"), ("Unsupported op x", "no line of Espresso")],
)
def test_bad_lines_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        read(text)
