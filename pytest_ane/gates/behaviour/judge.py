"""Verdict of the behaviour gate. Position 0 is reported separately: it attends to itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

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
    counted,
    limited,
    loosened,
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
    behaviour: Behaviour, policy: BehaviourPolicy, model: str,
    expect: Mapping[str, str] = _NO_TEXTS, *, trained: bool = False,
) -> Verdict:  # fmt: skip
    """Passed only if the reference is right and every threshold is kept.

    `expect` has by prompt what the reference's greedy text must contain; `trained` says that the
    weights are a trained model's, whose perplexity has a default limit.
    """
    if (embeddings := behaviour.embeddings) is not None:
        verdict = judge_embeddings(embeddings, policy, model, expect, behaviour.provenance)
    elif positions := _compared(behaviour):
        summary = LogitSummary.of(positions)
        # The largest perplexity that a right reference may have, if anything can tell.
        most = policy.max_reference_perplexity
        if most is None and trained:
            tokens = sum(position.reference_nll is not None for position in positions)
            most = perplexity_bound(behaviour.vocabulary or 0, tokens)
        reference = [*_wrong_reference(behaviour, summary, policy, most, expect)]
        faults = (*_undefined(behaviour), *_broken(summary, policy), *_greedy(behaviour, policy))
        causes = _first_causes(behaviour, policy) if faults and not reference else ()
        verdict = Verdict(
            "behaviour", model, tuple(_figures(behaviour, summary, policy, most)),
            (*reference, *faults, *causes, *_untested(behaviour, summary, policy)),
            tuple(_tables(behaviour, policy)), behaviour.provenance,
        )  # fmt: skip
    else:
        reason = "No golden prompt has a second position, so nothing was compared"
        more = {"provenance": behaviour.provenance}
        verdict = nothing("behaviour", model, reason, "add prompts", **more)
    costs = [
        Figure(f"cost.{name}", behaviour.costs[name], unit, label, shown=shown)
        for name, unit, label, shown in _COSTS
        if name in behaviour.costs
    ]
    verdict = replace(verdict, figures=(*verdict.figures, *loosened(policy)))
    return in_arithmetic(verdict, behaviour.arithmetic, behaviour.rules, costs)


def figures(behaviour: Behaviour) -> tuple[Figure, ...]:
    """Statistics of all positions but the prompts' first ones; none where there are no others."""
    if behaviour.embeddings is not None and behaviour.embeddings.texts:
        return tuple(figures_of_embeddings(behaviour.embeddings, BehaviourPolicy()))
    if not (positions := _compared(behaviour)):
        return ()
    made = _figures(behaviour, LogitSummary.of(positions), BehaviourPolicy(), None)
    worst = [alone.error for alone in worst_first(behaviour.alone)[:1]]
    label = "relative L2 of the worst shard alone"
    return (*made, *(Figure("shard.relative_l2.max", error, label=label) for error in worst))


def _compared(behaviour: Behaviour) -> list[Position]:
    return [p for prompt in behaviour.prompts for p in prompt.positions[1:]]


def _is_tie(prompt: PromptResult) -> bool:
    """Whether the reference was undecided where the texts part; no logit that is NaN is a tie."""
    finite = prompt.greedy[prompt.agreed] != NO_TOKEN
    return finite and prompt.leads[prompt.agreed] < TIE


def limits(policy: BehaviourPolicy, *, encoder: bool = False) -> Limits:
    """What a policy asks of figures, of logits or of an encoder's embeddings."""
    if encoder:
        return limits_of_embeddings(policy)
    return {
        **bounds("above", top1=policy.min_top1, centred_cosine__min=policy.min_centred_cosine,
                 positions=policy.min_positions),
        **bounds("below", kl__mean=policy.max_kl,
                 perplexity__increase=policy.max_perplexity_increase),
    }  # fmt: skip


def _statistics(summary: LogitSummary) -> Iterator[Figure]:
    """What a policy may limit, what its default limits first."""
    yield Figure("top1", summary.top1, "%", "top-1", shown=True)
    yield Figure("kl.mean", summary.kl, "nats", "KL", shown=True)
    cosine = summary.centred_cosine.min
    yield Figure("centred_cosine.min", cosine, label="centred cosine", shown=True)
    yield Figure("kl.p95", summary.kls.p95, "nats", "KL's 95th percentile")
    if (increase := summary.perplexity_increase) is not None:
        yield Figure("perplexity.increase", increase, "%", "perplexity increase", shown=True)


def _figures(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy, most: float | None
) -> Iterator[Figure]:
    """Statistics beside their limits, then the rest; `most` is for the reference's perplexity."""
    asked, prompts = limits(policy), behaviour.prompts
    first = LogitSummary.of([p.positions[0] for p in prompts if p.positions])
    alike = [p for p in prompts if p.agreed == len(p.expected) or _is_tie(p)]
    same = [p for p in alike if not any(_bad((p,), policy))]
    ties = sum(p.agreed < len(p.expected) for p in same)
    positions = Figure("positions", len(_compared(behaviour)), "positions", shown=True)
    yield from limited(_statistics(summary), asked)
    yield Figure("kl.median", summary.kls.median, "nats", "median KL")
    yield Figure("kl.max", summary.kls.max, "nats", "largest KL")
    yield Figure("rank.max", summary.rank, label="lowest rank")
    yield from limited([positions], asked)
    yield Figure("first.centred_cosine.min", first.centred_cosine.min,
                 label="centred cosine at position 0")  # fmt: skip
    yield Figure("first.kl.max", first.kls.max, "nats", "KL at position 0")
    yield Figure("greedy.agreed", min(p.agreed for p in prompts), "greedy tokens")
    yield Figure("greedy.by_prompt", " ".join(str(p.agreed) for p in prompts))
    yield Figure("prompts.unchanged", len(same), "prompts unchanged", of=len(prompts),
                 note=f"{ties} at a near tie" if ties else "", shown=True)  # fmt: skip
    if summary.cosine is not None:
        yield Figure("cosine.min", summary.cosine.min, label="cosine")
    for label, spread in (("centred cosine", summary.centred_cosine), ("cosine", summary.cosine)):
        if spread is not None:
            name = label.replace(" ", "_")
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


def _broken(summary: LogitSummary, policy: BehaviourPolicy) -> Iterator[Finding]:
    """One finding for each threshold that is not kept, which NaN keeps none of."""
    cosine, increase = summary.centred_cosine.min, summary.perplexity_increase
    times = f"{(increase or 0.0) + 1:.4g} times"
    reasons = {
        "top1": f"Top-1 agreement is {summary.top1:.1%}, below min-top1 = {policy.min_top1:g}",
        "kl.mean": f"Mean KL is {summary.kl:.4f} nats, above max-kl = {policy.max_kl:g}",
        "centred_cosine.min": f"The lowest centred cosine is {cosine:.4f}, below "
        f"min-centred-cosine = {policy.min_centred_cosine:g}",
        "perplexity.increase": f"Perplexity is {summary.perplexity or 0.0:,.5g}, {times} the "
        f"reference's {summary.reference_perplexity or 0.0:,.5g}, above max-perplexity-increase = "
        f"{policy.max_perplexity_increase or 0:g}",
    }
    for figure in limited(_statistics(summary), limits(policy)):
        if not figure.passes:
            yield Finding("failed", reasons[figure.name], figure=figure.name)


def _undefined(behaviour: Behaviour) -> Iterator[Finding]:
    """NaN fails everywhere, position 0 and greedy text included: nothing excuses it."""
    for prompt in behaviour.prompts:
        name, every = prompt.name, len(prompt.positions)
        if bad := [i for i, p in enumerate(prompt.positions) if not p.defined]:
            at = f"{len(bad)} of {every} positions, the first is {bad[0]}"
            reason = f"Logits of {name!r} are not finite, or all equal, at {at}"
            yield Finding("failed", reason, Where(probe=name, position=bad[0]))
        if NO_TOKEN in prompt.greedy:
            at = f"greedy token {prompt.greedy.index(NO_TOKEN) + 1}, so its text ends there"
            reason = f"Logits of {name!r} are not finite at {at}"
            yield Finding("failed", reason, Where(probe=name))
    gives = "NaN or only zeros on the reference's own states"
    for alone in behaviour.alone:
        if alone.undefined:
            reason, where = f"{alone.shard} gives {gives}", Where(shard=alone.shard)
            yield Finding("failed", reason, where, kind=f"give {gives}")


def _greedy(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Finding]:
    """A first difference where the reference itself was undecided is a tie, not an error."""
    for prompt in behaviour.prompts:
        wanted = min(policy.min_greedy, len(prompt.expected))
        if prompt.agreed < wanted and not _is_tie(prompt):
            lead = f"the reference led by {prompt.leads[prompt.agreed]:.2f}, ties count below"
            reason = f"Greedy text of {prompt.name!r} differs from token {prompt.agreed + 1} on"
            texts = f"{prompt.text!r} instead of {prompt.expected_text!r}"
            reason = f"{reason}: {texts} ({lead} {TIE:g})"
            yield Finding("failed", reason, Where(probe=prompt.name))


def _first_causes(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Finding]:
    """Notes on a failure: the shard that stands out, then the first bad position.

    A position may be as bad in a stack of right shards, so it comes last.
    """
    yield from note(behaviour.alone)
    for prompt, i, p in _bad(behaviour.prompts, policy):
        how = f"centred cosine {p.centred_cosine:.4f}, the reference's token at rank {p.rank}"
        how = how if p.defined else "logits not finite or all equal"
        reason = f"The first bad position is {i} of {prompt.name!r} ({how})"
        yield Finding("note", reason, Where(probe=prompt.name, position=i))
        break


def _untested(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy
) -> Iterator[Finding]:
    judged = len(_compared(behaviour))
    if judged < policy.min_positions:
        are = f"{counted(judged, 'position')} {'is' if judged == 1 else 'are'} judged"
        few = f"fewer than min-positions = {policy.min_positions} tell little"
        reason = f"{are}, the first of each prompt left out; {few}"
        remedy = "add golden prompts, or set policy.behaviour.min-positions"
        yield Finding("unproven", reason, remedy=remedy, figure="positions")
    longest, least = max(len(prompt.expected) for prompt in behaviour.prompts), policy.min_greedy
    # The default means as many as there are, up to ten; a number that somebody wrote means that.
    asked = "min_greedy" in policy.model_fields_set
    if (least and not longest) or (asked and least > longest):
        most_of = f"No golden prompt asks for more than {longest} greedy tokens"
        reason = f"{most_of}, so min-greedy = {least} was not tested"
        yield Finding("failed", reason, remedy="raise greedy in a prompt, or lower min-greedy")
    most = policy.max_perplexity_increase
    if most is not None and summary.perplexity_increase is None:
        yield _unknown("Perplexity", f"max-perplexity-increase = {most:g}")


def _unknown(what: str, key: str) -> Finding:
    reason = f"{what} is not known, so {key} was not tested"
    return Finding("failed", reason, remedy="add a prompt of at least three tokens")


def _tables(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[Table]:
    prompts = behaviour.prompts
    columns = (
        Column("prompt"), Column("top-1", "%", policy.min_top1, "above"),
        Column("KL", "nats", policy.max_kl, "below"), Column("KL p95", "nats"),
        Column("head's KL", "nats"),
        Column("centred cosine", "", policy.min_centred_cosine, "above"),
        *map(Column, ("at", "position 0", "perplexity", "reference's")),
    )  # fmt: skip
    rows = tuple(_row(prompt) for prompt in prompts if prompt.positions[1:])
    yield Table("prompts, position 0 in a column of its own", columns, rows, "prompts")
    leads = (p.leads[p.agreed] if p.agreed < len(p.expected) else None for p in prompts)
    yield Table(
        "greedy text; tokens that agree, and the reference's lead where they part",
        tuple(map(Column, ("prompt", "agree", "of", "lead", "text"))),
        tuple(
            (p.name, p.agreed, len(p.expected), lead, repr(p.text))
            for p, lead in zip(prompts, leads, strict=True)
        ),
        "greedy",
    )
    if behaviour.alone:
        yield table(behaviour.alone)
    heads = tuple(map(Column, ("prompt", "text", "reference", "agree")))
    texts = tuple((p.name, p.text, p.expected_text, p.agreed) for p in prompts)
    yield Table("greedy text beside the reference's", heads, texts, "texts", listed=False)
    yield _positions(prompts, policy)
    if behaviour.drift:
        yield drift_table(behaviour.drift, behaviour.alone)


def _row(prompt: PromptResult) -> tuple[float | int | str | None, ...]:
    first, *rest = prompt.positions
    s, head = LogitSummary.of(rest), prompt.head.kl if prompt.head is not None else None
    worst = min(rest, key=lambda p: -2.0 if math.isnan(p.centred_cosine) else p.centred_cosine)
    at = prompt.positions.index(worst, 1)
    cosines = (worst.centred_cosine, at, first.centred_cosine)
    return (
        prompt.name, s.top1, s.kl, s.kls.p95, head, *cosines, s.perplexity, s.reference_perplexity,
    )  # fmt: skip


def _is_bad(p: Position, i: int, policy: BehaviourPolicy) -> bool:
    """Whether a position is undefined, or below the minimum, or predicts another token.

    Position 0 attends to itself alone, and is bad only where it is undefined. Another token is no
    fault where the reference's margin is that of a tie; NaN is no tie.
    """
    if not i or not p.defined:
        return not p.defined
    tie = p.margin is not None and p.margin < TIE
    return not (p.centred_cosine >= policy.min_centred_cosine and (p.top1 or tie))


def _bad(
    prompts: Sequence[PromptResult], policy: BehaviourPolicy
) -> Iterator[tuple[PromptResult, int, Position]]:
    for prompt in prompts:
        for i, p in enumerate(prompt.positions):
            if _is_bad(p, i, policy):
                yield prompt, i, p


def _positions(prompts: Sequence[PromptResult], policy: BehaviourPolicy) -> Table:
    words = {True: "yes", False: "no"}
    rows = [
        (prompt.name, i, prompt.pieces[i] if prompt.pieces else None, rounded(p.kl),
         words[p.top1], rounded(p.centred_cosine), words[_is_bad(p, i, policy)])
        for prompt in prompts
        for i, p in enumerate(prompt.positions)
    ]  # fmt: skip
    heads = ("prompt", "position", "text", "KL", "top-1", "centred cosine", "bad")
    columns = tuple(Column(head, "nats" if head == "KL" else "") for head in heads)
    return Table("positions", columns, tuple(rows), "positions", listed=False)


def _wrong_reference(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy, most: float | None,
    expect: Mapping[str, str],
) -> Iterator[Finding]:  # fmt: skip
    perplexity, asked = summary.reference_perplexity, policy.max_reference_perplexity
    faults = [
        f"its greedy text of {prompt.name!r} is {prompt.expected_text!r} and "
        f"{expect[prompt.name]!r} is expected"
        for prompt in behaviour.prompts
        if prompt.expected and expect.get(prompt.name, "") not in prompt.expected_text
    ]
    if most is not None and perplexity is not None and not perplexity <= most:
        why = ", which token frequencies alone would give" if asked is None else ""
        above = f"above max-reference-perplexity = {most:,.4g}{why}"
        faults.append(f"its perplexity on the prompts is {perplexity:,.4g}, {above}")
    if faults:
        reason = f"The reference is wrong: {'; '.join(faults)}"
        remedy = "check the source of its weights, its tokenizer and the family before any shard"
        yield Finding("failed", reason, remedy=remedy)
    if asked is not None and perplexity is None:
        yield _unknown("The reference's perplexity", f"max-reference-perplexity = {asked:g}")
