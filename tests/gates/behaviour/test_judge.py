"""The behaviour gate's verdicts, sentence by sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.chain.chain import NO_TOKEN
from pytest_ane.chain.exact import Head
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.metrics.logits import Position

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
WORST = "The worst shard on the reference's own states is L01 (cosine 0.987600)."
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
        "kl.median": 0.01,
        "kl.p95": 0.01,
        "kl.max": 0.01,
        "rank.max": 0,
        "centred_cosine.min": 0.999,
        "centred_cosine.p5": 0.999,
        "centred_cosine.median": 0.999,
        "positions": 6,
        "first.centred_cosine.min": 0.5,
        "first.kl.max": 9.0,
        "greedy.agreed": 3,
        "greedy.by_prompt": "3 3",
        "prompts.unchanged": 2,
    }
    assert verdict.details == (
        "facts: top-1 100.0%, KL 0.0100, p95 0.0100",
        "  centred cosine min 0.9990 at 1, p5 0.9990, median 0.9990; position 0 0.5000",
        "  greedy 3/3: ' a b c'",
        "chat: top-1 100.0%, KL 0.0100, p95 0.0100",
        "  centred cosine min 0.9990 at 1, p5 0.9990, median 0.9990; position 0 0.5000",
        "  greedy 3/3: ' a b c'",
        "L01 alone: lowest cosine 0.987600",
        "L00 alone: lowest cosine 0.999100",
        "L02 alone: lowest cosine 0.999500",
    )


LOSSES = {"cosine": 0.9995, "margin": 2.0, "nll": math.log(3), "reference_nll": math.log(2)}


def test_the_statistics_of_today() -> None:
    """Perplexity 3 where the reference has 2; the last position has no next token."""
    full = replace(SAME, **LOSSES)
    last = replace(full, nll=None, reference_nll=None)
    verdict = of(replace(GOOD, positions=(full, full, last), head=Head(1.0, 0.002, 0.9999)))
    assert verdict.status == "passed"
    assert verdict.summary == (
        "top-1 100.0% · KL 0.0100 · centred cosine min 0.9990 · perplexity +50.0% · 2 positions"
        " · greedy 3/3"
    )
    assert verdict.facts["perplexity"] == pytest.approx(3)
    assert verdict.facts["perplexity.reference"] == pytest.approx(2)
    assert verdict.facts["cosine.median"] == 0.9995
    assert verdict.facts["head.kl.mean"] == 0.002
    assert verdict.details[:4] == (
        "facts: top-1 100.0%, KL 0.0100, p95 0.0100; head alone KL 0.0020",
        "  centred cosine min 0.9990 at 1, p5 0.9990, median 0.9990; position 0 0.9990",
        "  perplexity 3.000, reference 2.000",
        "  greedy 3/3: ' a b c'",
    )
    assert max(map(len, verdict.details)) <= 80


def test_the_head_s_own_kl_is_weighed_by_positions() -> None:
    """Of 0.3 at two positions and 0.6 at one; a prompt of one position has none."""
    prompts = (
        replace(GOOD, positions=(FIRST, SAME, SAME), head=Head(1.0, 0.3, 0.99)),
        replace(GOOD, positions=(FIRST, SAME), head=Head(1.0, 0.6, 0.99)),
        replace(GOOD, positions=(FIRST,)),
    )
    assert of(*prompts).facts["head.kl.mean"] == pytest.approx(0.4)


def test_perplexity_that_rose() -> None:
    full = replace(SAME, **LOSSES)
    prompt = replace(GOOD, positions=(FIRST, full, full))
    assert of(prompt, **{"max-perplexity-increase": 0.51}).status == "passed"
    assert of(prompt, **{"max-perplexity-increase": 0.49}).reasons == (
        WORST,
        "Perplexity is 3.000, +50.00% of the reference's 2.000, above max-perplexity-increase = "
        "0.49.",
    )


@pytest.mark.parametrize("broken", [{"nll": NAN}, {"nll": math.inf}, {"reference_nll": NAN}])
def test_no_perplexity_passes_that_is_not_finite(broken: dict[str, float]) -> None:
    prompt = replace(GOOD, positions=(FIRST, replace(SAME, **{**LOSSES, **broken})))
    assert of(prompt, **{"max-perplexity-increase": 1e300}).status == "failed"


def test_perplexity_that_nobody_measured() -> None:
    assert of(GOOD, **{"max-perplexity-increase": 0.1}).reasons == (
        "Perplexity is not known, so max-perplexity-increase = 0.1 was not tested; it needs a "
        "prompt of three tokens, and evidence recorded with it.",
    )


def test_the_95th_percentile_of_kl() -> None:
    """Of 0.01 nineteen times and 0.21 once, linearly between them: 0.01 + 0.05 * 0.2."""
    prompt = replace(GOOD, positions=(FIRST, *[SAME] * 19, replace(SAME, kl=0.21)))
    assert of(prompt, **{"max-kl-p95": 0.0201}).status == "passed"
    assert of(prompt, **{"max-kl-p95": 0.0199}).reasons == (
        WORST,
        "KL's 95th percentile is 0.0200 nats, above max-kl-p95 = 0.0199.",
    )
    broken = replace(GOOD, positions=(FIRST, *[SAME] * 19, replace(SAME, kl=NAN)))
    assert "95th percentile is nan" in " ".join(of(broken, **{"max-kl-p95": 1e300}).reasons)


def test_prompts_that_are_not_what_they_were() -> None:
    """Another token where the reference led by much; where it did not, that is a tie."""
    near, clear = replace(OTHER, margin=0.2), replace(OTHER, margin=0.5)
    prompts = [
        replace(GOOD, name=name, positions=(FIRST, *[SAME] * 20, p))
        for name, p in (("near", near), ("clear", clear), ("unknown", OTHER))
    ]
    verdict = of(*prompts, **{"min-unchanged-prompts": 0.34})
    assert verdict.facts["prompts.unchanged"] == 1
    assert verdict.reasons[1:] == (
        "1 of 3 prompts are unchanged, below min-unchanged-prompts = 0.34: not 'clear', 'unknown'.",
    )
    assert verdict.reasons[0].startswith("The first bad position is 21 of 'clear' (centred cosine")
    assert of(*prompts, **{"min-unchanged-prompts": 0.33}).status == "passed"


def test_a_prompt_with_other_greedy_text_is_changed() -> None:
    other = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    asks = {"min-unchanged-prompts": 1.0, "min-greedy": 1}
    assert of(other, **asks).reasons[1] == (
        "0 of 1 prompts are unchanged, below min-unchanged-prompts = 1: not 'facts'."
    )
    assert of(replace(other, leads=(4.0, 0.1, 2.0)), **asks).status == "passed"


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
    assert "short: one position only" in verdict.details


def test_a_prompt_without_any_position_beside_another() -> None:
    assert of(GOOD, replace(GOOD, positions=())).status == "passed"


def test_too_many_other_tokens() -> None:
    verdict = of(replace(GOOD, positions=(FIRST, SAME, SAME, OTHER)))
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "The first bad position is 3 of 'facts' (centred cosine 0.9500, the reference's token at "
        "rank 3); the worst shard on the reference's own states is L01 (cosine 0.987600).",
        "Top-1 agreement is 66.7%, below min-top1 = 0.9.",
    )
    assert of(replace(GOOD, positions=(FIRST, SAME, OTHER)), **{"min-top1": 0.5}).reasons == ()


def test_too_far_apart() -> None:
    far = replace(SAME, kl=0.4)
    verdict = of(replace(GOOD, positions=(FIRST, SAME, far)))
    assert verdict.reasons == (WORST, "Mean KL is 0.2050 nats, above max-kl = 0.05.")
    assert verdict.facts["kl.max"] == 0.4


def test_a_low_cosine_names_the_first_bad_position() -> None:
    bad, worse = replace(SAME, centred_cosine=0.8), replace(OTHER, centred_cosine=0.1)
    prompts = (
        replace(GOOD, positions=(FIRST, *[SAME] * 20)),
        replace(GOOD, name="chat", positions=(FIRST, SAME, bad, worse)),
    )
    verdict = of(*prompts)
    assert verdict.reasons == (
        "The first bad position is 2 of 'chat' (centred cosine 0.8000, the reference's token at "
        "rank 0); the worst shard on the reference's own states is L01 (cosine 0.987600).",
        "The lowest centred cosine is 0.1000, below min-centred-cosine = 0.9.",
    )
    assert verdict.details[4].startswith("  centred cosine min 0.1000 at 3, p5 0.17")


def test_position_0_does_not_count() -> None:
    assert of(replace(GOOD, positions=(Position(-1.0, 99.0, False, 9), SAME))).status == "passed"


def test_other_words() -> None:
    differs = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    verdict = of(GOOD, differs)
    assert verdict.reasons == (
        WORST,
        "Greedy text of 'facts' differs from token 2 on: ' a x c' instead of ' a b c' (the "
        "reference led by 3.00, ties count below 0.5).",
    )
    assert verdict.summary.endswith("greedy 3/3 1/3")
    assert verdict.facts["greedy.agreed"] == 1
    assert verdict.details[5] == "  greedy 1/3 (the reference led by 3.00 there): ' a x c'"


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


def test_fewer_greedy_tokens_than_the_policy_asks_are_not_enough() -> None:
    assert of(GOOD, **{"min-greedy": 4}).reasons == (
        "No golden prompt asks for more than 3 greedy tokens, so min-greedy = 4 was not tested; "
        "raise greedy in a prompt, or lower min-greedy.",
    )
    assert of(GOOD, **{"min-greedy": 3}).status == of(GOOD).status == "passed"


@pytest.mark.parametrize("expected", [7, NO_TOKEN])
def test_nan_in_greedy_text_is_no_tie(expected: int) -> None:
    """Nor does it agree with a reference that gave NaN itself."""
    broken = replace(
        GOOD, greedy=(5, 6, NO_TOKEN), expected=(5, 6, expected), leads=(4.0, 3.0, 0.1), text=" a b"
    )
    for least in (0, 3):
        verdict = of(broken, **{"min-greedy": least})
        assert verdict.status == "failed"
        assert (
            "Logits of 'facts' are not finite at greedy token 3, so its text ends there."
            in verdict.reasons
        )
        assert verdict.facts["prompts.unchanged"] == 0


@pytest.mark.parametrize("field", ["centred_cosine", "kl"])
def test_nan_fails_the_laxest_policy(field: str) -> None:
    broken = replace(SAME, **{field: NAN})
    lax = {"min-top1": 0.0, "max-kl": 1e9, "min-centred-cosine": -1.0, "min-greedy": 0}
    assert of(replace(GOOD, positions=(FIRST, OTHER)), **lax).status == "passed"
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, SAME)), **lax)
    assert verdict.status == "failed"
    assert verdict.reasons[0].startswith(
        "The first bad position is 2 of 'facts' (logits not finite or all alike)"
    )
    assert "Logits of 'facts' are not finite or all alike at 1 of 4 positions, from 2 on." in (
        verdict.reasons
    )


def test_an_infinite_divergence_fails() -> None:
    broken = replace(SAME, kl=math.inf)
    assert of(replace(GOOD, positions=(FIRST, broken)), **{"max-kl": 1e300}).status == "failed"


def test_a_nan_position_is_the_worst_of_its_prompt() -> None:
    broken = replace(SAME, centred_cosine=NAN)
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, OTHER)))
    assert "centred cosine min nan at 2, p5 nan, median nan" in verdict.details[1]
    assert "first bad position is 2 of 'facts'" in verdict.reasons[0]


def test_a_shard_that_gives_nan_is_blamed() -> None:
    verdict = of(
        replace(GOOD, positions=(FIRST, OTHER)), alone=(("L00", 0.1), ("L01", NAN), ("L02", 0.2))
    )
    assert verdict.reasons[0].endswith(
        "; the worst shard on the reference's own states is L01 (gives NaN or only zeros)."
    )
    assert verdict.details[-3:] == (
        "L01 alone: lowest cosine nan",
        "L00 alone: lowest cosine 0.100000",
        "L02 alone: lowest cosine 0.200000",
    )


def test_a_model_of_heads_alone_has_no_shard_to_blame() -> None:
    verdict = of(replace(GOOD, positions=(FIRST, OTHER)), alone=())
    assert verdict.reasons == (
        "The first bad position is 1 of 'facts' (centred cosine 0.9500, the reference's token at "
        "rank 3).",
        "Top-1 agreement is 0.0%, below min-top1 = 0.9.",
    )


def test_everything_wrong_is_said() -> None:
    broken = PromptResult("p", (FIRST, Position(-0.5, 7.0, False, 9)), (1,), (2,), (3.0,), "x", "y")
    reasons = of(broken).reasons
    assert [reason.split()[0] for reason in reasons] == ["The", "Top-1", "Mean", "The", "Greedy"]


def test_nan_at_position_0_fails_too() -> None:
    verdict = of(replace(GOOD, positions=(Position(NAN, NAN, False, 0), SAME)))
    assert verdict.status == "failed"
    assert verdict.reasons == (
        "The first bad position is 0 of 'facts' (logits not finite or all alike); the worst shard "
        "on the reference's own states is L01 (cosine 0.987600).",
        "Logits of 'facts' are not finite or all alike at 1 of 2 positions, from 0 on.",
    )


def test_a_shard_that_gives_nan_alone_fails() -> None:
    verdict = of(GOOD, alone=(("L00", 0.99), ("L01", NAN)))
    assert verdict.reasons[1] == "L01 gives NaN or only zeros on the reference's own states."


def test_many_shards_that_give_nan_are_counted() -> None:
    verdict = of(GOOD, alone=tuple((f"L{i:02}", NAN) for i in range(30)))
    assert verdict.reasons[1] == (
        "L00, L01, L02 and 27 more give NaN or only zeros on the reference's own states."
    )


def test_of_all_that_is_wrong_where_is_said_first() -> None:
    """For a report shows eight sentences at most; all logits are NaN."""
    nothing = Position(NAN, NAN, False, 9, NAN, 0.1, NAN, 1.0)
    prompts = [
        replace(GOOD, name=name, positions=(nothing,) * 3, greedy=(0, 0, 0)) for name in "ab"
    ]
    asks = {"max-kl-p95": 1, "max-perplexity-increase": 1}
    reasons = of(*prompts, alone=(("L00", 0.9), ("L01", NAN)), **asks).reasons
    assert reasons[0] == (
        "The first bad position is 0 of 'a' (logits not finite or all alike); the worst shard on "
        "the reference's own states is L01 (gives NaN or only zeros)."
    )
    assert [reason.split()[0] for reason in reasons[1:]] == [
        "Logits", "Logits", "L01", "Top-1", "Mean", "KL's", "The", "Perplexity", "Greedy", "Greedy"
    ]  # fmt: skip
