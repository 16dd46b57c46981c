"""Verdict of the behaviour gate. Position 0 is reported separately: it attends to itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pytest_ane.gates.arithmetics import in_arithmetic
from pytest_ane.gates.behaviour._alone import drift_table, note, table, worst_first
from pytest_ane.gates.behaviour._embeddings import figures as figures_of_embeddings
from pytest_ane.gates.behaviour._embeddings import judge_embeddings
from pytest_ane.gates.behaviour._embeddings import limits as limits_of_embeddings
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.gates.verdict import (
    Column,
    Figure,
    Finding,
    Limits,
    Table,
    Verdict,
    Where,
    bounds,
    limited,
    nothing,
    rounded,
)
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.metrics.logits import LogitSummary, Position, perplexity_bound
from pytest_ane.models.chain import NO_TOKEN

_COSTS = (
    ("kl", "nats", "costs: KL to typed", True),
    ("top1", "%", "costs: top-1 as typed", False),
    ("cosine", "", "costs: embedding cosine to typed", True),
)
"""Of `Behaviour.costs`: name, unit, label, and whether the row shows it."""
TIE = 0.5
"""A difference counts as a tie where the reference led by fewer logits than this."""
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})


def judge(
    behaviour: Behaviour,
    policy: BehaviourPolicy,
    model: str,
    expect: Mapping[str, str] = _NO_TEXTS,
    *,
    trained: bool = False,
) -> Verdict:
    """Passed only if the reference is right and every threshold is kept.

    Args:
        behaviour: the measurement.
        policy: the model's thresholds.
        model: its name.
        expect: by prompt, what the reference's greedy text must contain.
        trained: whether the weights are a trained model's, whose perplexity has a default limit.
    """
    if (embeddings := behaviour.embeddings) is not None:
        verdict = judge_embeddings(embeddings, policy, model, expect, behaviour.provenance)
    else:
        verdict = _judge(behaviour, policy, model, expect, trained=trained)
    costs = [
        Figure(f"cost.{name}", behaviour.costs[name], unit, label, shown=shown)
        for name, unit, label, shown in _COSTS
        if name in behaviour.costs
    ]
    return in_arithmetic(verdict, behaviour.arithmetic, behaviour.rules, costs)


def _judge(
    behaviour: Behaviour,
    policy: BehaviourPolicy,
    model: str,
    expect: Mapping[str, str],
    *,
    trained: bool,
) -> Verdict:
    positions = _compared(behaviour)
    if not positions:
        reason = "No golden prompt has a second position, so nothing was compared"
        return nothing("behaviour", model, reason, "add prompts", provenance=behaviour.provenance)
    summary = LogitSummary.of(positions)
    most = most_perplexity(behaviour, policy, trained=trained)
    perplexity = summary.reference_perplexity
    reference = [*wrong_reference(behaviour, perplexity, policy, most, expect)]
    findings = [
        *reference,
        *_undefined(behaviour),
        *_statistics(summary, policy),
        *_greedy(behaviour, policy),
    ]
    where = _first_causes(behaviour, policy) if findings and not reference else ()
    return Verdict(
        gate="behaviour",
        subject=model,
        figures=(*_judged(summary, policy), *_others(behaviour, summary, policy, most)),
        findings=(*findings, *where, *_untested(behaviour, summary, policy)),
        tables=tuple(_tables(behaviour, policy)),
        provenance=behaviour.provenance,
    )


def figures(behaviour: Behaviour) -> tuple[Figure, ...]:
    """Statistics of all positions but the prompts' first ones; none where there are no others."""
    if behaviour.embeddings is not None and behaviour.embeddings.texts:
        return tuple(figures_of_embeddings(behaviour.embeddings, BehaviourPolicy()))
    if not (positions := _compared(behaviour)):
        return ()
    policy, summary = BehaviourPolicy(), LogitSummary.of(positions)
    made = (*_judged(summary, policy), *_others(behaviour, summary, policy, None))
    worst = [alone.error for alone in worst_first(behaviour.alone)[:1]]
    label = "relative L2 of the worst shard alone"
    return (*made, *(Figure("shard.relative_l2.max", error, label=label) for error in worst))


def _compared(behaviour: Behaviour) -> list[Position]:
    return [p for prompt in behaviour.prompts for p in prompt.positions[1:]]


def _is_tie(prompt: PromptResult) -> bool:
    """Whether the reference was undecided where the texts part; no logit that is NaN is a tie."""
    finite = prompt.greedy[prompt.agreed] != NO_TOKEN
    return finite and prompt.leads[prompt.agreed] < TIE


def _unchanged(prompt: PromptResult, policy: BehaviourPolicy) -> bool:
    """Whether a prompt has no bad position, and no other greedy text but by a tie."""
    same = prompt.agreed == len(prompt.expected) or _is_tie(prompt)
    return same and first_bad((prompt,), policy) is None


def limits(policy: BehaviourPolicy, *, encoder: bool = False) -> Limits:
    """What a policy asks of figures, of logits or of an encoder's embeddings.

    The reference's perplexity has a limit that depends on the prompts.
    """
    if encoder:
        return limits_of_embeddings(policy)
    return {
        **bounds("above", top1=policy.min_top1, centred_cosine__min=policy.min_centred_cosine,
                 positions=policy.min_positions),
        **bounds("below", kl__mean=policy.max_kl,
                 perplexity__increase=policy.max_perplexity_increase),
    }  # fmt: skip


def _judged(summary: LogitSummary, policy: BehaviourPolicy) -> Iterator[Figure]:
    """Statistics with a threshold of the policy, those of the default policy first."""
    yield from limited(_statistics_of(summary), limits(policy))


def _statistics_of(summary: LogitSummary) -> Iterator[Figure]:
    yield Figure("top1", summary.top1, "%", "top-1", shown=True)
    yield Figure("kl.mean", summary.kl, "nats", "KL", shown=True)
    yield Figure("centred_cosine.min", summary.centred_cosine.min, label="centred cosine",
                 shown=True)  # fmt: skip
    yield Figure("kl.p95", summary.kls.p95, "nats", "KL's 95th percentile")
    if (increase := summary.perplexity_increase) is not None:
        yield Figure("perplexity.increase", increase, "%", "perplexity increase", shown=True)


def _others(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy, most: float | None
) -> Iterator[Figure]:
    """Statistics without a threshold, but for the reference's perplexity and its `most`."""
    prompts = behaviour.prompts
    first = LogitSummary.of([p.positions[0] for p in prompts if p.positions])
    same = [p for p in prompts if _unchanged(p, policy)]
    ties = sum(p.agreed < len(p.expected) for p in same)
    note = f"{ties} part{'' if ties > 1 else 's'} at a near tie" if ties else ""
    yield Figure("kl.median", summary.kls.median, "nats", "median KL")
    yield Figure("kl.max", summary.kls.max, "nats", "largest KL")
    yield Figure("rank.max", summary.rank, label="lowest rank")
    positions = Figure("positions", len(_compared(behaviour)), "positions", shown=True)
    yield from limited([positions], limits(policy))
    yield Figure("first.centred_cosine.min", first.centred_cosine.min,
                 label="centred cosine at position 0")  # fmt: skip
    yield Figure("first.kl.max", first.kls.max, "nats", "KL at position 0")
    yield Figure("greedy.agreed", min(p.agreed for p in prompts), "greedy tokens")
    yield Figure("greedy.by_prompt", " ".join(str(p.agreed) for p in prompts))
    yield Figure("prompts.unchanged", len(same), "prompts unchanged", of=len(prompts), note=note,
                 shown=True)  # fmt: skip
    for name, label, spread in (
        ("centred_cosine", "centred cosine", summary.centred_cosine),
        ("cosine", "cosine", summary.cosine),
    ):
        if spread is not None:
            if name == "cosine":
                yield Figure(f"{name}.min", spread.min, label=label)
            yield Figure(f"{name}.p5", spread.p5, label=f"{label}, 5th percentile")
            yield Figure(f"{name}.median", spread.median, label=f"median {label}")
    if summary.perplexity is not None and summary.reference_perplexity is not None:
        yield Figure("perplexity", summary.perplexity, label="perplexity")
        yield Figure("perplexity.reference", summary.reference_perplexity,
                     label="the reference's perplexity", limit=most, good="below")  # fmt: skip
    for prompt in prompts:
        if prompt.expected:
            yield Figure(f"reference.text.{prompt.name}", prompt.expected_text)
    heads = [(p.head.kl, len(p.positions) - 1) for p in prompts if p.head is not None]
    if total := sum(weight for _, weight in heads):
        # Over the same positions as kl.mean; NaN stays NaN.
        kl = sum(kl * weight for kl, weight in heads) / total
        yield Figure("head.kl.mean", kl, "nats", "KL of the head alone")


def _statistics(summary: LogitSummary, policy: BehaviourPolicy) -> Iterator[Finding]:
    """One finding for each threshold that is not kept, which NaN keeps none of."""
    reasons = {
        "top1": f"Top-1 agreement is {summary.top1:.1%}, below min-top1 = {policy.min_top1:g}",
        "kl.mean": f"Mean KL is {summary.kl:.4f} nats, above max-kl = {policy.max_kl:g}",
        "centred_cosine.min": (
            f"The lowest centred cosine is {summary.centred_cosine.min:.4f}, below "
            f"min-centred-cosine = {policy.min_centred_cosine:g}"
        ),
    }
    if (increase := summary.perplexity_increase) is not None:
        reasons["perplexity.increase"] = (
            f"Perplexity is {summary.perplexity:,.5g}, {_times(increase + 1)} the reference's "
            f"{summary.reference_perplexity:,.5g}, above max-perplexity-increase = "
            f"{policy.max_perplexity_increase or 0:g}"
        )
    for figure in _judged(summary, policy):
        if not figure.passes:
            yield Finding("failed", reasons[figure.name], figure=figure.name)


def _times(ratio: float) -> str:
    return "more than 1,000 times" if ratio > 1000 else f"{ratio:.4g} times"


def _undefined(behaviour: Behaviour) -> Iterator[Finding]:
    """NaN fails everywhere, position 0 and greedy text included: nothing excuses it."""
    for prompt in behaviour.prompts:
        bad = [i for i, p in enumerate(prompt.positions) if not p.defined]
        if bad:
            yield Finding(
                "failed",
                f"Logits of {prompt.name!r} are not finite, or all equal, at {len(bad)} of "
                f"{len(prompt.positions)} positions, the first is {bad[0]}",
                Where(probe=prompt.name, position=bad[0]),
            )
        if NO_TOKEN in prompt.greedy:
            token = prompt.greedy.index(NO_TOKEN) + 1
            yield Finding(
                "failed",
                f"Logits of {prompt.name!r} are not finite at greedy token {token}, so its text "
                "ends there",
                Where(probe=prompt.name),
            )
    for alone in behaviour.alone:
        if alone.undefined:
            yield Finding(
                "failed",
                f"{alone.shard} gives NaN or only zeros on the reference's own states",
                Where(shard=alone.shard),
                kind="give NaN or only zeros on the reference's own states",
            )


def _greedy(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Finding]:
    """A first difference where the reference itself was undecided is a tie, not an error."""
    for prompt in behaviour.prompts:
        wanted = min(policy.min_greedy, len(prompt.expected))
        if prompt.agreed < wanted and not _is_tie(prompt):
            yield Finding(
                "failed",
                f"Greedy text of {prompt.name!r} differs from token {prompt.agreed + 1} on: "
                f"{prompt.text!r} instead of {prompt.expected_text!r} (the reference led by "
                f"{prompt.leads[prompt.agreed]:.2f}, ties count below {TIE:g})",
                Where(probe=prompt.name),
            )


def _first_causes(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Finding]:
    """Notes on a failure: the shard that stands out, then the first bad position.

    A position may be as bad in a stack of right shards, so it comes last.
    """
    yield from note(behaviour.alone)
    if (bad := first_bad(behaviour.prompts, policy)) is not None:
        prompt, at = bad
        p = prompt.positions[at]
        how = f"centred cosine {p.centred_cosine:.4f}, the reference's token at rank {p.rank}"
        how = how if p.defined else "logits not finite or all equal"
        yield Finding(
            "note",
            f"The first bad position is {at} of {prompt.name!r} ({how})",
            Where(probe=prompt.name, position=at),
        )


def _untested(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy
) -> Iterator[Finding]:
    judged = len(_compared(behaviour))
    if judged < policy.min_positions:
        counted = "1 position is" if judged == 1 else f"{judged} positions are"
        yield Finding(
            "unproven",
            f"{counted} judged, the first of each prompt left out; fewer than min-positions = "
            f"{policy.min_positions} tell little",
            remedy="add golden prompts, or set policy.behaviour.min-positions",
            figure="positions",
        )
    longest = max(len(prompt.expected) for prompt in behaviour.prompts)
    if policy.min_greedy and not longest:
        yield Finding(
            "failed",
            f"No golden prompt asks for greedy text, so min-greedy = {policy.min_greedy} was not "
            "tested",
            remedy="set greedy in a prompt, or min-greedy to 0",
        )
    # The default means as many as there are, up to ten; a number that somebody wrote means that.
    elif policy.min_greedy > longest and "min_greedy" in policy.model_fields_set:
        yield Finding(
            "failed",
            f"No golden prompt asks for more than {longest} greedy tokens, so min-greedy = "
            f"{policy.min_greedy} was not tested",
            remedy="raise greedy in a prompt, or lower min-greedy",
        )
    most = policy.max_perplexity_increase
    if most is not None and summary.perplexity_increase is None:
        yield Finding(
            "failed",
            f"Perplexity is not known, so max-perplexity-increase = {most:g} was not tested",
            remedy="add a prompt of at least three tokens",
        )


def _tables(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Table]:
    rows = [_row(prompt) for prompt in behaviour.prompts if prompt.positions[1:]]
    above: Literal["above"] = "above"
    yield Table(
        "prompts, position 0 in a column of its own",
        (
            Column("prompt"),
            Column("top-1", "%", policy.min_top1, above),
            Column("KL", "nats", policy.max_kl, "below"),
            Column("KL p95", "nats"),
            Column("head's KL", "nats"),
            Column("centred cosine", "", policy.min_centred_cosine, above),
            Column("at"),
            Column("position 0"),
            Column("perplexity"),
            Column("reference's"),
        ),
        tuple(rows),
        "prompts",
    )
    yield Table(
        "greedy text; tokens that agree, and the reference's lead where they part",
        (Column("prompt"), Column("agree"), Column("of"), Column("lead"), Column("text")),
        tuple(
            (
                p.name,
                p.agreed,
                len(p.expected),
                float(p.leads[p.agreed]) if p.agreed < len(p.expected) else None,
                repr(p.text),
            )
            for p in behaviour.prompts
        ),
        "greedy",
    )
    if behaviour.alone:
        yield table(behaviour.alone)
    yield Table(
        "greedy text beside the reference's",
        tuple(map(Column, ("prompt", "text", "reference", "agree"))),
        tuple((p.name, p.text, p.expected_text, p.agreed) for p in behaviour.prompts),
        "texts",
        listed=False,
    )
    yield positions_table(behaviour.prompts, policy)
    if behaviour.drift:
        yield drift_table(behaviour.drift, behaviour.alone)


def _row(prompt: PromptResult) -> tuple[float | int | str | None, ...]:
    rest = prompt.positions[1:]
    s = LogitSummary.of(rest)
    worst = min(rest, key=lambda p: -2.0 if math.isnan(p.centred_cosine) else p.centred_cosine)
    return (
        prompt.name,
        s.top1,
        s.kl,
        s.kls.p95,
        None if prompt.head is None else prompt.head.kl,
        worst.centred_cosine,
        prompt.positions.index(worst, 1),
        prompt.positions[0].centred_cosine,
        s.perplexity,
        s.reference_perplexity,
    )


def is_bad(p: Position, policy: BehaviourPolicy) -> bool:
    """Whether a position is undefined, or below the minimum, or predicts another token.

    Another token is no fault where the reference's margin is that of a tie; NaN is no tie.
    """
    tie = p.margin is not None and p.margin < TIE
    good = p.defined and p.centred_cosine >= policy.min_centred_cosine and (p.top1 or tie)
    return not good


def first_bad(
    prompts: Sequence[PromptResult], policy: BehaviourPolicy
) -> tuple[PromptResult, int] | None:
    """The first bad position in the prompts' order; position 0 only where it is undefined."""
    for prompt in prompts:
        for i, p in enumerate(prompt.positions):
            if _counts_as_bad(p, i, policy):
                return prompt, i
    return None


def positions_table(prompts: Sequence[PromptResult], policy: BehaviourPolicy) -> Table:
    """Every position of every prompt, with the text of its own token."""
    rows = [
        (
            prompt.name,
            i,
            prompt.pieces[i] if prompt.pieces else None,
            rounded(p.kl),
            "yes" if p.top1 else "no",
            rounded(p.centred_cosine),
            "yes" if _counts_as_bad(p, i, policy) else "no",
        )
        for prompt in prompts
        for i, p in enumerate(prompt.positions)
    ]
    heads = ("prompt", "position", "text", "KL", "top-1", "centred cosine", "bad")
    columns = tuple(Column(head, "nats" if head == "KL" else "") for head in heads)
    return Table("positions", columns, tuple(rows), "positions", listed=False)


def _counts_as_bad(p: Position, i: int, policy: BehaviourPolicy) -> bool:
    """Position 0 attends to itself alone, and is bad only where it is undefined."""
    return is_bad(p, policy) if i else not p.defined


def most_perplexity(
    behaviour: Behaviour, policy: BehaviourPolicy, *, trained: bool
) -> float | None:
    """The largest perplexity that a right reference may have; None where nothing can tell."""
    if policy.max_reference_perplexity is not None or not trained:
        return policy.max_reference_perplexity
    tokens = sum(p.reference_nll is not None for q in behaviour.prompts for p in q.positions[1:])
    return perplexity_bound(behaviour.vocabulary or 0, tokens)


def wrong_reference(
    behaviour: Behaviour,
    perplexity: float | None,
    policy: BehaviourPolicy,
    most: float | None,
    expect: Mapping[str, str],
) -> Iterator[Finding]:
    """One finding with all that is wrong with the reference.

    Args:
        behaviour: the measurement.
        perplexity: the reference's own, on the prompts.
        policy: the model's thresholds.
        most: as `most_perplexity` has it.
        expect: by prompt, what its greedy text must contain.
    """
    faults = [
        f"its greedy text of {prompt.name!r} is {prompt.expected_text!r} and "
        f"{expect[prompt.name]!r} is expected"
        for prompt in behaviour.prompts
        if prompt.expected and expect.get(prompt.name, "") not in prompt.expected_text
    ]
    if most is not None and perplexity is not None and not perplexity <= most:
        own = policy.max_reference_perplexity is not None
        why = "" if own else ", which token frequencies alone would give"
        faults.append(
            f"its perplexity on the prompts is {perplexity:,.4g}, above "
            f"max-reference-perplexity = {most:,.4g}{why}"
        )
    if faults:
        yield Finding(
            "failed",
            f"The reference is wrong: {'; '.join(faults)}",
            remedy="check the source of its weights, its tokenizer and the family before any shard",
        )
    asked = policy.max_reference_perplexity
    if asked is not None and perplexity is None:
        yield Finding(
            "failed",
            "The reference's perplexity is not known, so max-reference-perplexity = "
            f"{asked:g} was not tested",
            remedy="add a prompt of at least three tokens",
        )
