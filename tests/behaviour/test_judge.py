"""The behaviour gate's verdicts, sentence by sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.behaviour import Behaviour, judge
from pytest_ane.behaviour.measure import PromptResult
from pytest_ane.behaviour.statistics import Position
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.verdict import Verdict

NAN = math.nan
FIRST = Position(0.5, 9.0, False, 700)
SAME = Position(0.999, 0.01, True, 0)
OTHER = Position(0.95, 0.03, False, 3)
GOOD = PromptResult(
    name="facts",
    positions=(FIRST, SAME, SAME, SAME),
    greedy=(5, 6, 7),
    expected=(5, 6, 7),
    leads=(4.0, 3.0, 2.0),
    text=" a b c",
    expected_text=" a b c",
)
ALONE = (("L00", 0.9991), ("L01", 0.9876), ("L02", 0.9995))


def of(*prompts: PromptResult, alone: Any = ALONE, **policy: Any) -> Verdict:
    behaviour = Behaviour(prompts, alone, {})
    return judge(behaviour, BehaviourPolicy.model_validate(policy), "smollm2")


def test_the_stack_says_the_same() -> None:
    verdict = of(GOOD, replace(GOOD, name="chat"))
    assert (verdict.gate, verdict.subject) == ("behaviour", "smollm2")
    assert (verdict.status, verdict.reasons) == ("passed", ())
    assert verdict.summary == (
        "top-1 100.0% · KL 0.0100 · centred cosine min 0.9990 · 6 positions · greedy 3/3 3/3"
    )
    assert verdict.facts == {
        "top1": 1.0,
        "kl.mean": pytest.approx(0.01),
        "kl.max": 0.01,
        "centred_cosine.min": 0.999,
        "centred_cosine.median": 0.999,
        "positions": 6,
        "first.centred_cosine.min": 0.5,
        "greedy.agreed": 3,
    }
    assert verdict.details == (
        "facts: top-1 100.0%, KL 0.0100, worst centred cosine 0.9990 at position 1, position 0 "
        "0.5000, greedy 3/3: ' a b c'",
        "chat: top-1 100.0%, KL 0.0100, worst centred cosine 0.9990 at position 1, position 0 "
        "0.5000, greedy 3/3: ' a b c'",
        "L01 alone: lowest cosine 0.987600",
        "L00 alone: lowest cosine 0.999100",
        "L02 alone: lowest cosine 0.999500",
    )


@pytest.mark.parametrize("prompts", [(), (replace(GOOD, positions=(FIRST,)),)])
def test_position_0_alone_proves_nothing(prompts: tuple[PromptResult, ...]) -> None:
    verdict = of(*prompts)
    assert (verdict.status, verdict.summary) == ("unproven", "nothing was compared")
    assert verdict.reasons == (
        "No golden prompt has a second position, so nothing was compared; add prompts.",
    )


def test_a_prompt_of_one_position_beside_another() -> None:
    verdict = of(GOOD, replace(GOOD, name="short", positions=(FIRST,)))
    assert verdict.status == "passed"
    assert verdict.details[1] == "short: one position only"


def test_a_prompt_without_any_position_beside_another() -> None:
    assert of(GOOD, replace(GOOD, positions=())).status == "passed"


WORST = "The worst shard on the reference's own states is L01 (cosine 0.987600)."


def test_too_many_other_tokens() -> None:
    verdict = of(replace(GOOD, positions=(FIRST, SAME, SAME, OTHER)))
    assert verdict.status == "failed"
    assert verdict.reasons == ("Top-1 agreement is 66.7%, below min-top1 = 0.9.", WORST)
    assert of(replace(GOOD, positions=(FIRST, SAME, OTHER)), **{"min-top1": 0.5}).reasons == ()


def test_too_far_apart() -> None:
    far = replace(SAME, kl=0.4)
    verdict = of(replace(GOOD, positions=(FIRST, SAME, far)))
    assert verdict.reasons == ("Mean KL is 0.2050 nats, above max-kl = 0.05.", WORST)
    assert verdict.facts["kl.max"] == 0.4


def test_a_low_cosine_names_the_first_bad_position() -> None:
    bad, worse = replace(SAME, centred_cosine=0.8), replace(OTHER, centred_cosine=0.1)
    prompts = (
        replace(GOOD, positions=(FIRST, *[SAME] * 20)),
        replace(GOOD, name="chat", positions=(FIRST, SAME, bad, worse)),
    )
    verdict = of(*prompts)
    assert verdict.reasons == (
        "The lowest centred cosine is 0.1000, below min-centred-cosine = 0.9; first bad position: "
        "2 of 'chat' (rank of the reference's token: 0).",
        WORST,
    )
    assert "worst centred cosine 0.1000 at position 3" in verdict.details[1]


def test_position_0_does_not_count() -> None:
    assert of(replace(GOOD, positions=(Position(-1.0, 99.0, False, 9), SAME))).status == "passed"


def test_other_words() -> None:
    differs = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    verdict = of(GOOD, differs)
    assert verdict.reasons == (
        "Greedy text of 'facts' differs from token 2 on: ' a x c' instead of ' a b c' (the "
        "reference led by 3.00, ties count below 0.5).",
        WORST,
    )
    assert verdict.summary.endswith("greedy 3/3 1/3")
    assert verdict.facts["greedy.agreed"] == 1
    assert verdict.details[1].endswith("greedy 1/3 (the reference led by 3.00 there): ' a x c'")


@pytest.mark.parametrize(("lead", "passes"), [(0.49, True), (0.5, False), (NAN, False)])
def test_a_difference_where_the_reference_was_undecided_is_a_tie(lead: float, passes: bool) -> None:
    differs = replace(GOOD, greedy=(5, 8, 7), leads=(4.0, lead, 2.0))
    assert (of(differs).status == "passed") is passes


def test_as_many_equal_tokens_as_the_policy_asks_are_enough() -> None:
    differs = replace(GOOD, greedy=(5, 6, 8))
    assert of(differs, **{"min-greedy": 2}).status == "passed"
    assert of(differs, **{"min-greedy": 3}).status == "failed"
    assert of(replace(GOOD, greedy=(8, 6, 7)), **{"min-greedy": 0}).status == "passed"


def test_greedy_text_that_nobody_asked_for_was_not_tested() -> None:
    silent = replace(GOOD, greedy=(), expected=(), leads=(), text="", expected_text="")
    verdict = of(silent)
    assert verdict.reasons[0] == (
        "No golden prompt asks for greedy text, so min-greedy = 10 was not tested; set greedy in a "
        "prompt, or min-greedy to 0."
    )
    assert of(silent, GOOD).status == "passed"
    assert of(silent, **{"min-greedy": 0}).status == "passed"


@pytest.mark.parametrize("field", ["centred_cosine", "kl"])
def test_nan_fails_the_laxest_policy(field: str) -> None:
    broken = replace(SAME, **{field: NAN})
    lax = {"min-top1": 0.0, "max-kl": 1e9, "min-centred-cosine": -1.0, "min-greedy": 0}
    assert of(replace(GOOD, positions=(FIRST, OTHER)), **lax).status == "passed"
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, SAME)), **lax)
    assert verdict.status == "failed"
    assert "nan" in verdict.reasons[0]


def test_an_infinite_divergence_fails() -> None:
    broken = replace(SAME, kl=math.inf)
    assert of(replace(GOOD, positions=(FIRST, broken)), **{"max-kl": 1e300}).status == "failed"


def test_a_nan_position_is_the_worst_of_its_prompt() -> None:
    broken = replace(SAME, centred_cosine=NAN)
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, OTHER)))
    assert "worst centred cosine nan at position 2" in verdict.details[0]
    assert "first bad position: 2 of 'facts'" in " ".join(verdict.reasons)


def test_a_shard_that_gives_nan_is_blamed() -> None:
    verdict = of(
        replace(GOOD, positions=(FIRST, OTHER)), alone=(("L00", 0.1), ("L01", NAN), ("L02", 0.2))
    )
    assert verdict.reasons[-1] == (
        "The worst shard on the reference's own states is L01 (cosine nan)."
    )
    assert verdict.details[1:] == (
        "L01 alone: lowest cosine nan",
        "L00 alone: lowest cosine 0.100000",
        "L02 alone: lowest cosine 0.200000",
    )


def test_a_model_of_heads_alone_has_no_shard_to_blame() -> None:
    verdict = of(replace(GOOD, positions=(FIRST, OTHER)), alone=())
    assert verdict.reasons == ("Top-1 agreement is 0.0%, below min-top1 = 0.9.",)


def test_everything_wrong_is_said() -> None:
    broken = PromptResult("p", (FIRST, Position(-0.5, 7.0, False, 9)), (1,), (2,), (3.0,), "x", "y")
    reasons = of(broken).reasons
    assert [reason.split()[0] for reason in reasons] == ["Top-1", "Mean", "The", "Greedy", "The"]


def test_nan_at_position_0_fails_too() -> None:
    verdict = of(replace(GOOD, positions=(Position(NAN, NAN, False, 0), SAME)))
    assert verdict.status == "failed"
    assert verdict.reasons[0] == ("Logits of 'facts' at position 0 are not finite or all alike.")


def test_a_shard_that_gives_nan_alone_fails() -> None:
    verdict = of(GOOD, alone=(("L00", 0.99), ("L01", NAN)))
    assert verdict.reasons[0].startswith("L01 gives NaN or only zeros")
