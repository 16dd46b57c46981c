"""A search for shards to blame, in words."""

from __future__ import annotations

import pytest

from pytest_ane.gates.verdict import Figure, Finding, Verdict, nothing
from pytest_ane.tools.bisect import Bisection, StackEvaluation, evaluation_line, sentence


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            Bisection("green", evaluations=1),
            "m is green as it is: no shard is to blame (1 stack evaluation).",
        ),
        (
            Bisection("found", ("L07",), 1, 3),
            "L07 is to blame: exact, it restores the verdict (3 stack evaluations).",
        ),
        (
            Bisection("unproven", evaluations=1),
            "m is unproven as it is, so no shard can be blamed: Why (1 stack evaluation)",
        ),
        (
            Bisection("found", ("L07", "L02"), 2, 5),
            "L02, L07 are to blame: exact, they restore the verdict, and none can be spared (5 "
            "stack evaluations).",
        ),
        (
            Bisection("many", ("L07", "L02"), 12, 20),
            "More than 2 shards are to blame, so a search for a few ends here: the 12 worst of 34 "
            "have to be exact for a green verdict; pytest-ane drift shows what each contributes "
            "(20 stack evaluations).",
        ),
        (
            Bisection("reference", evaluations=2),
            "The reference itself does not meet the policy: Why (2 stack evaluations)",
        ),
    ],
)
def test_the_sentence(found: Bisection, says: str) -> None:
    why = Finding("unproven" if found.outcome == "unproven" else "failed", "Why")
    assert sentence(found, "m", 34, Verdict("behaviour", "m", findings=(why,))) == says


def test_shards_to_blame_of_what_stays_unproven() -> None:
    assert sentence(
        Bisection("found", ("L07",), 1, 3), "m", 34, nothing("behaviour", "m", "Why")
    ) == (
        "L07 is to blame: exact, nothing fails, and the verdict is unproven: Why (3 stack "
        "evaluations)."
    )


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "none"), (2, "L00, L01"), (9, "L00, L01, L02, L03, L04, L05 and 3 more"), (34, "all")],
)
def test_a_trial(count: int, says: str) -> None:
    unproven = nothing("behaviour", "m", "Why")
    found = StackEvaluation(tuple(f"L{i:02d}" for i in range(count)), unproven)
    assert evaluation_line(found, 3, 34) == f" 3. exact: {says} - unproven (Why)"


def test_a_trial_with_its_numbers() -> None:
    facts = {"top1": 0.951, "kl.mean": 0.02651, "greedy.agreed": 3}
    green = Verdict("behaviour", "m", tuple(Figure(*fact) for fact in facts.items()))
    assert evaluation_line(StackEvaluation(("L07",), green), 12, 34) == (
        "12. exact: L07 - green (top-1 95.1%, KL 0.0265, 3 greedy tokens)"
    )
