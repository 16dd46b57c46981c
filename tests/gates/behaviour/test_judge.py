"""The behaviour gate's verdicts: figures, findings and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ane.gates.behaviour import Behaviour, judge
from pytest_ane.gates.behaviour.measure import PromptResult
from pytest_ane.gates.verdict import Cell, Verdict
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.metrics.logits import Position
from pytest_ane.models.chain import NO_TOKEN
from pytest_ane.probes.exact_chain import Head, ShardAlone, StackState
from pytest_ane.report.verdict import details

NAN = math.nan
FIRST = Position(0.5, 9.0, False, 700)
SAME = Position(0.999, 0.01, True, 0)
OTHER = Position(0.95, 0.03, False, 3)
GOOD = PromptResult(
    name="facts", positions=(FIRST, SAME, SAME, SAME), greedy=(5, 6, 7), expected=(5, 6, 7),
    leads=(4.0, 3.0, 2.0), text=" a b c", expected_text=" a b c",
)  # fmt: skip


def shard(name: str, error: float, cosine: float = 0.99) -> ShardAlone:
    return ShardAlone(name, "head" if name.startswith("head") else "block", error, cosine)


ALONE = (shard("L00", 0.05), shard("L01", 0.2), shard("L02", 0.04))


def of(*prompts: PromptResult, alone: Any = ALONE, **policy: Any) -> Verdict:
    behaviour = Behaviour(prompts, alone, {})
    own = {"min-positions": 1, **policy}
    return judge(behaviour, BehaviourPolicy.model_validate(own), "smollm2")


def beyond(verdict: Verdict) -> list[str]:
    """Figures beyond their limits; what is wrong besides counts as an empty name."""
    return [finding.figure for finding in verdict.reasons]


def first_bad(verdict: Verdict) -> tuple[str, int | None]:
    """Prompt and position of the first bad position."""
    note = next(f for f in verdict.findings if f.severity == "note" and f.where.probe)
    return note.where.probe, note.where.position


def blamed(verdict: Verdict) -> str:
    """The shard that a note names; empty where none does."""
    shards = [f.where.shard for f in verdict.findings if f.severity == "note"]
    return next(filter(None, shards), "")


def test_the_stack_says_the_same() -> None:
    verdict = of(GOOD, replace(GOOD, name="chat"))
    assert (verdict.gate, verdict.subject) == ("behaviour", "smollm2")
    assert (verdict.status, verdict.findings) == ("passed", ())
    assert verdict.values == {
        "top1": 1.0, "kl.mean": pytest.approx(0.01), "kl.median": 0.01, "kl.p95": 0.01,
        "kl.max": 0.01, "rank.max": 0, "centred_cosine.min": 0.999, "centred_cosine.p5": 0.999,
        "centred_cosine.median": 0.999, "positions": 6, "first.centred_cosine.min": 0.5,
        "first.kl.max": 9.0, "greedy.agreed": 3, "greedy.by_prompt": "3 3", "prompts.unchanged": 2,
        "reference.text.facts": " a b c", "reference.text.chat": " a b c",
        "looser.min_positions": "at least 1, default 32",
    }  # fmt: skip
    limits = {figure.name: figure.limit for figure in verdict.figures if figure.limit is not None}
    assert limits == {"top1": 0.9, "kl.mean": 0.05, "centred_cosine.min": 0.9, "positions": 1}
    prompts, greedy, alone, *_ = verdict.tables
    assert [row[0] for row in prompts.rows] == ["facts", "chat"]
    assert [row[1:3] for row in greedy.rows] == [(3, 3), (3, 3)]
    assert [row[0] for row in alone.rows] == ["L01", "L00", "L02"]


LOSSES = {"cosine": 0.9995, "margin": 2.0, "nll": math.log(3), "reference_nll": math.log(2)}


def test_perplexity_of_shards_and_the_head_alone() -> None:
    """Perplexity 3 where the reference has 2; the last position has no next token."""
    full = replace(SAME, **LOSSES)
    last = replace(full, nll=None, reference_nll=None)
    verdict = of(replace(GOOD, positions=(full, full, last), head=Head(1.0, 0.002, 0.9999)))
    assert verdict.status == "passed"
    assert verdict.values["perplexity"] == pytest.approx(3)
    assert verdict.values["perplexity.reference"] == pytest.approx(2)
    assert verdict.values["perplexity.increase"] == pytest.approx(0.5)
    assert verdict.values["cosine.median"] == 0.9995
    assert verdict.values["head.kl.mean"] == 0.002
    # Of 0.3 at two positions and 0.6 at one; a prompt of one position has none.
    prompts = (
        replace(GOOD, positions=(FIRST, SAME, SAME), head=Head(1.0, 0.3, 0.99)),
        replace(GOOD, positions=(FIRST, SAME), head=Head(1.0, 0.6, 0.99)),
        replace(GOOD, positions=(FIRST,)),
    )
    assert of(*prompts).values["head.kl.mean"] == pytest.approx(0.4)


def test_perplexity_that_rose_or_that_nobody_measured() -> None:
    full = replace(SAME, **LOSSES)
    prompt = replace(GOOD, positions=(FIRST, full, full))
    assert of(prompt, **{"max-perplexity-increase": 0.51}).status == "passed"
    assert beyond(of(prompt, **{"max-perplexity-increase": 0.49})) == ["perplexity.increase"]
    (finding,) = of(GOOD, **{"max-perplexity-increase": 0.1}).reasons
    assert (finding.severity, finding.figure) == ("failed", "")
    lost = replace(SAME, **{**LOSSES, "nll": 600.0})
    verdict = of(replace(GOOD, positions=(FIRST, lost)), **{"max-perplexity-increase": 0.1})
    (finding,) = verdict.reasons
    assert " times the reference's " in finding.reason
    assert max(map(len, finding.reason.split())) < 30


@pytest.mark.parametrize("broken", [{"nll": NAN}, {"nll": math.inf}, {"reference_nll": NAN}])
def test_no_perplexity_passes_that_is_not_finite(broken: dict[str, float]) -> None:
    prompt = replace(GOOD, positions=(FIRST, replace(SAME, **{**LOSSES, **broken})))
    assert of(prompt, **{"max-perplexity-increase": 100}).status == "failed"


def test_prompts_that_are_not_what_they_were() -> None:
    """Another token where the reference led by much; where it did not, that is a tie."""
    near, clear = replace(OTHER, margin=0.2), replace(OTHER, margin=0.5)
    prompts = [
        replace(GOOD, name=name, positions=(FIRST, *[SAME] * 20, p))
        for name, p in (("near", near), ("clear", clear), ("unknown", OTHER))
    ]
    verdict = of(*prompts, **{"min-top1": 0.99})
    assert verdict.values["prompts.unchanged"] == 1
    assert first_bad(verdict) == ("clear", 21)
    other = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    assert of(other).values["prompts.unchanged"] == 0
    assert of(replace(other, leads=(4.0, 0.1, 2.0))).values["prompts.unchanged"] == 1


@pytest.mark.parametrize(
    ("positions", "policy", "status"),
    [
        ((32,), {}, "passed"),
        ((16, 16), {}, "passed"),
        ((16, 15), {}, "unproven"),
        ((31,), {"min-positions": 31}, "passed"),
        ((32,), {"min-positions": 33}, "unproven"),
        ((0,), {"min-positions": 1}, "unproven"),
        ((), {"min-positions": 1}, "unproven"),
        ((0, 1), {"min-positions": 1}, "passed"),
    ],
)
def test_few_positions_tell_little(
    positions: tuple[int, ...], policy: dict[str, int], status: str
) -> None:
    """Of each prompt these come after the first, which is not judged."""
    prompts = [replace(GOOD, name=f"p{n}", positions=(FIRST, *[SAME] * n)) for n in positions]
    behaviour = Behaviour(tuple(prompts), ALONE, {})
    verdict = judge(behaviour, BehaviourPolicy.model_validate(policy), "smollm2")
    assert verdict.status == status
    if status == "unproven" and any(positions):
        (finding,) = verdict.reasons
        assert finding.figure == "positions"
        assert finding.reason.startswith(f"{sum(positions)} positions are judged")
        assert finding.remedy == "add golden prompts, or set policy.behaviour.min-positions"


BAD, WORSE = replace(SAME, centred_cosine=0.8), replace(OTHER, centred_cosine=0.1)


@pytest.mark.parametrize(
    ("positions", "policy", "figures", "at"),
    [
        ((SAME, SAME, OTHER), {}, ["top1"], 3),
        ((SAME, OTHER), {"min-top1": 0.5}, [], None),
        ((SAME, replace(SAME, kl=0.4)), {}, ["kl.mean"], None),
        ((OTHER,), {"min-positions": 32}, ["top1", "positions"], 1),
        ((*[SAME] * 20, BAD, WORSE), {}, ["centred_cosine.min"], 21),
        ((Position(-0.5, 7.0, False, 9),), {}, ["top1", "kl.mean", "centred_cosine.min"], 1),
    ],
)
def test_statistics_beyond_their_limits(
    positions: Any, policy: dict[str, float], figures: list[str], at: int | None
) -> None:
    """Whatever position 0 is, which attends to itself alone."""
    verdict = of(replace(GOOD, positions=(Position(-1.0, 99.0, False, 9), *positions)), **policy)
    assert beyond(verdict) == figures
    if at is not None:
        assert first_bad(verdict) == ("facts", at)


def test_other_words() -> None:
    differs = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    verdict = of(GOOD, differs)
    (finding,) = verdict.reasons
    assert finding.where.probe == "facts"
    assert "' a x c' instead of ' a b c'" in finding.reason
    assert verdict.values["greedy.agreed"] == 1
    assert verdict.tables[1].rows[1][1:4] == (1, 3, 3.0)
    other = replace(GOOD, greedy=(5, 8, 7), text=" a x c")
    assert rows(of(other), "texts") == (("facts", " a x c", " a b c", 1),)


@pytest.mark.parametrize(("lead", "passes"), [(0.49, True), (0.5, False), (NAN, False)])
def test_a_difference_where_the_reference_was_undecided_is_a_tie(lead: float, passes: bool) -> None:
    differs = replace(GOOD, greedy=(5, 8, 7), leads=(4.0, lead, 2.0))
    verdict = of(differs)
    assert (verdict.status == "passed") is passes
    unchanged = verdict.figure("prompts.unchanged")
    assert (unchanged.value, unchanged.note) == ((1, "1 at a near tie") if passes else (0, ""))


def test_greedy_tokens_are_compared_as_far_as_the_policy_asks() -> None:
    differs = replace(GOOD, greedy=(5, 6, 8))
    assert of(differs, **{"min-greedy": 2}).status == "passed"
    assert of(differs, **{"min-greedy": 3}).status == "failed"
    assert of(replace(GOOD, greedy=(8, 6, 7)), **{"min-greedy": 0}).status == "passed"
    assert of(GOOD, **{"min-greedy": 4}).status == "failed"
    assert of(GOOD, **{"min-greedy": 3}).status == of(GOOD).status == "passed"
    silent = replace(GOOD, greedy=(), expected=(), leads=(), text="", expected_text="")
    (finding,) = of(silent).reasons
    assert "min-greedy" in finding.reason
    assert of(silent, GOOD).status == "passed"
    assert of(silent, **{"min-greedy": 0}).status == "passed"


@pytest.mark.parametrize("expected", [7, NO_TOKEN])
def test_nan_in_greedy_text_is_no_tie(expected: int) -> None:
    """Nor does it agree with a reference that gave NaN itself."""
    broken = replace(
        GOOD, greedy=(5, 6, NO_TOKEN), expected=(5, 6, expected), leads=(4.0, 3.0, 0.1), text=" a b"
    )
    for least in (0, 3):
        verdict = of(broken, **{"min-greedy": least})
        assert verdict.status == "failed"
        assert verdict.reasons[0].where.probe == "facts"
        assert verdict.values["prompts.unchanged"] == 0


@pytest.mark.parametrize("field", ["centred_cosine", "kl"])
def test_nan_fails_the_laxest_policy(field: str) -> None:
    broken = replace(SAME, **{field: NAN})
    lax = {"min-top1": 0.01, "max-kl": 5, "min-centred-cosine": 0.01, "min-greedy": 0}
    assert of(replace(GOOD, positions=(FIRST, SAME, OTHER)), **lax).status == "passed"
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, SAME)), **lax)
    assert verdict.status == "failed"
    assert (verdict.reasons[0].where.probe, verdict.reasons[0].where.position) == ("facts", 2)
    assert first_bad(verdict) == ("facts", 2)


def test_infinite_and_undefined_positions_are_the_worst() -> None:
    broken = replace(SAME, kl=math.inf)
    assert of(replace(GOOD, positions=(FIRST, broken)), **{"max-kl": 5}).status == "failed"
    broken = replace(SAME, centred_cosine=NAN)
    verdict = of(replace(GOOD, positions=(FIRST, SAME, broken, OTHER)))
    cosine, at = verdict.tables[0].rows[0][5:7]
    assert math.isnan(float(cosine or 0))
    assert at == 2
    assert first_bad(verdict) == ("facts", 2)
    verdict = of(replace(GOOD, positions=(Position(NAN, NAN, False, 0), SAME)))
    (finding,) = verdict.reasons
    assert (finding.where.probe, finding.where.position) == ("facts", 0)


RED = replace(GOOD, positions=(FIRST, OTHER))


@pytest.mark.parametrize(
    "wrong", [shard("L01", 0.2, NAN), shard("L01", NAN), shard("L01", NAN, NAN)]
)
def test_a_shard_that_gives_nan_is_the_worst(wrong: ShardAlone) -> None:
    verdict = of(RED, alone=(shard("L00", 0.9), wrong, shard("L02", 0.8)))
    assert blamed(verdict) == "L01"
    assert [row[0] for row in verdict.tables[2].rows] == ["L01", "L00", "L02"]


BLOCKS = (shard("L00", 0.05), shard("L01", 0.04), shard("L02", 0.04))


@pytest.mark.parametrize(
    ("alone", "name"),
    [
        # By its error, however low the cosine of another is.
        ((*BLOCKS[:2], shard("L02", 0.2), shard("L03", 0.05, 0.5)), "L02"),
        ((*BLOCKS, shard("L03", 0.101)), "L03"),
        ((*BLOCKS, shard("L03", 0.099)), ""),
        # What is much for a head is little for a block.
        ((*BLOCKS, shard("head.0", 0.01), shard("head.1", 0.1), shard("head.2", 0.01)), "head.1"),
        ((*BLOCKS, shard("head.0", 0.09)), ""),
        ((*BLOCKS, shard("head.0", 0.2)), "head.0"),
        # Far from its kind, and still better than most.
        ((*BLOCKS, shard("head.0", 1e-4), shard("head.1", 1e-2), shard("head.2", 1e-4)), ""),
        ((shard("L00", 0.0), shard("L01", 0.0)), ""),
        ((shard("L00", 0.5),), ""),
        ((shard("L00", 0.0), shard("L01", 0.0), shard("L02", 0.1)), "L02"),
        ((*BLOCKS, shard("L03", math.inf)), "L03"),
    ],
)
def test_the_shard_that_stands_out_is_named(alone: tuple[ShardAlone, ...], name: str) -> None:
    verdict = of(RED, alone=alone)
    assert blamed(verdict) == name
    notes = [finding.reason for finding in verdict.findings if finding.severity == "note"]
    assert notes[0].startswith("The worst shard" if name else "No single shard stands out")
    assert "first bad position" in notes[1]


SPOKEN = replace(GOOD, positions=(FIRST, *[replace(SAME, **LOSSES)] * 30))


def reference(
    *prompts: PromptResult, vocabulary: int = 49_152, trained: bool = True, **policy: Any
) -> Verdict:
    """Judged with `b` expected of the text of `facts`."""
    behaviour = Behaviour(prompts, ALONE, {}, vocabulary)
    rules = BehaviourPolicy.model_validate({"min-positions": 1, **policy})
    return judge(behaviour, rules, "smollm2", {"facts": "b"}, trained=trained)


def test_a_reference_that_says_what_is_expected() -> None:
    verdict = reference(SPOKEN, replace(SPOKEN, name="chat", expected_text=" x"))
    assert verdict.status == "passed"
    figure = verdict.figure("perplexity.reference")
    assert (figure.value, figure.good) == (pytest.approx(2), "below")
    assert 1906 < float(figure.limit or 0) < 49_152 / 4


def test_a_reference_that_says_something_else_is_blamed_before_any_shard() -> None:
    wrong = replace(GOOD, text=" The Louvre", expected_text=" The Louvre", positions=(FIRST, OTHER))
    verdict = reference(wrong)
    assert beyond(verdict) == ["", "top1"]
    assert verdict.reasons[0].reason == (
        "The reference is wrong: its greedy text of 'facts' is ' The Louvre' and 'b' is expected"
    )
    assert blamed(verdict) == ""


def test_a_reference_of_noise() -> None:
    noise = replace(SAME, **{**LOSSES, "reference_nll": math.log(60_000), "nll": math.log(60_000)})
    prompt = replace(SPOKEN, positions=(FIRST, *[noise] * 30))
    verdict = reference(prompt)
    assert beyond(verdict) == [""]
    assert verdict.reasons[0].reason.startswith(
        "The reference is wrong: its perplexity on the prompts is 6e+04, above max-reference-"
    )
    # Made-up weights have no language, and few tokens tell nothing.
    assert reference(prompt, trained=False).status == "passed"
    assert reference(replace(SPOKEN, positions=(FIRST, *[noise] * 5))).status == "passed"
    limit = {"max-reference-perplexity": 100}
    assert beyond(reference(prompt, trained=False, **limit)) == [""]
    assert reference(prompt, **{"max-reference-perplexity": 1e5}).status == "passed"
    for nll in (NAN, math.inf):
        broken = replace(SAME, **{**LOSSES, "reference_nll": nll})
        assert "" in beyond(reference(replace(SPOKEN, positions=(FIRST, *[broken] * 30))))


def test_what_nobody_measured_of_a_reference_and_every_shard_that_is_nan() -> None:
    (finding,) = reference(GOOD, **{"max-reference-perplexity": 40}).reasons
    assert (finding.severity, finding.figure) == ("failed", "")
    verdict = of(GOOD, alone=(shard("L00", 0.1), *(shard(f"L{i:02}", NAN) for i in range(1, 30))))
    assert [finding.where.shard for finding in verdict.reasons] == [
        f"L{i:02}" for i in range(1, 30)
    ]
    assert len({finding.kind for finding in verdict.reasons}) == 1


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


def test_the_drift_in_running_order_beside_each_shard_alone() -> None:
    behaviour = Behaviour((GOOD,), ALONE, {}, drift=DRIFT)
    policy = BehaviourPolicy.model_validate({"min-positions": 1})
    verdict = judge(behaviour, policy, "m")
    assert rows(verdict, "drift") == (("L00", 0.05, 0.999, 0.05), ("L01", 0.12346, None, 0.2))
    assert "hidden states" not in "\n".join(details(verdict))
    assert of(GOOD).table("drift") is None
