"""The behaviour gate's opinion. Position 0 is reported apart: it attends to itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ane.chain.chain import NO_TOKEN
from pytest_ane.core.verdict import Verdict
from pytest_ane.gates.behaviour.bad import first_bad, is_tie, unchanged, weakest_first
from pytest_ane.gates.behaviour.details import details, facts, summary_line
from pytest_ane.gates.behaviour.measure import Behaviour
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.metrics.logits import LogitSummary


def judge(behaviour: Behaviour, policy: BehaviourPolicy, model: str) -> Verdict:
    """Passed only if positions beyond the first were compared and every policy holds."""
    positions = [p for prompt in behaviour.prompts for p in prompt.positions[1:]]
    if not positions:
        reason = "No golden prompt has a second position, so nothing was compared; add prompts."
        return Verdict(
            "behaviour", model, "unproven", "nothing was compared", (reason,),
            provenance=behaviour.provenance,
        )  # fmt: skip
    summary = LogitSummary.of(positions)
    wrong = [
        *_undefined(behaviour),
        *_statistics(summary, policy),
        *_prompts(behaviour, policy),
        *_greedy(behaviour, policy),
    ]
    reasons = [*(where(behaviour, policy) if wrong else ()), *wrong]
    reasons += _untested(behaviour, summary, policy)
    return Verdict(
        gate="behaviour",
        subject=model,
        status="failed" if reasons else "passed",
        summary=summary_line(behaviour, summary, len(positions)),
        reasons=tuple(reasons),
        facts=facts(behaviour, policy, summary, len(positions)),
        details=tuple(details(behaviour)),
        provenance=behaviour.provenance,
    )


def where(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[str]:
    """A sentence: the first bad position, and the worst shard.

    Said first, for it is what a person acts upon; nothing where neither is known.
    """
    parts = []
    if (found := first_bad(behaviour, policy)) is not None:
        prompt, at = found
        p = prompt.positions[at]
        says = f"centred cosine {p.centred_cosine:.4f}, the reference's token at rank {p.rank}"
        what = says if p.defined else "logits not finite or all alike"
        parts.append(f"the first bad position is {at} of {prompt.name!r} ({what})")
    if behaviour.alone:
        shard, value = weakest_first(behaviour)[0]
        what = "gives NaN or only zeros" if math.isnan(value) else f"cosine {value:.6f}"
        parts.append(f"the worst shard on the reference's own states is {shard} ({what})")
    if text := "; ".join(parts):
        yield f"{text[0].upper()}{text[1:]}."


def _undefined(behaviour: Behaviour) -> Iterator[str]:
    """NaN fails everywhere, position 0 and greedy text included: nothing excuses it."""
    for prompt in behaviour.prompts:
        bad = [i for i, p in enumerate(prompt.positions) if not p.defined]
        if bad:
            yield (
                f"Logits of {prompt.name!r} are not finite or all alike at {len(bad)} of "
                f"{len(prompt.positions)} positions, from {bad[0]} on."
            )
        if NO_TOKEN in prompt.greedy:
            yield (
                f"Logits of {prompt.name!r} are not finite at greedy token "
                f"{prompt.greedy.index(NO_TOKEN) + 1}, so its text ends there."
            )
    if broken := [shard for shard, value in behaviour.alone if math.isnan(value)]:
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        give = "give" if len(broken) > 1 else "gives"
        yield (
            f"{', '.join(broken[:3])}{more} {give} NaN or only zeros on the reference's own states."
        )


def _statistics(summary: LogitSummary, policy: BehaviourPolicy) -> Iterator[str]:
    """Comparisons are written so that NaN fails every one of them."""
    if not summary.top1 >= policy.min_top1:
        yield f"Top-1 agreement is {summary.top1:.1%}, below min-top1 = {policy.min_top1:g}."
    if not summary.kl <= policy.max_kl:
        yield f"Mean KL is {summary.kl:.4f} nats, above max-kl = {policy.max_kl:g}."
    if (most := policy.max_kl_p95) is not None and not summary.kls.p95 <= most:
        yield f"KL's 95th percentile is {summary.kls.p95:.4f} nats, above max-kl-p95 = {most:g}."
    if not (low := summary.centred_cosine.min) >= policy.min_centred_cosine:
        least = f"min-centred-cosine = {policy.min_centred_cosine:g}"
        yield f"The lowest centred cosine is {low:.4f}, below {least}."
    increase, most = summary.perplexity_increase, policy.max_perplexity_increase
    if most is not None and increase is not None and not increase <= most:
        yield (
            f"Perplexity is {summary.perplexity:.3f}, {increase:+.2%} of the reference's "
            f"{summary.reference_perplexity:.3f}, above max-perplexity-increase = {most:g}."
        )


def _untested(
    behaviour: Behaviour, summary: LogitSummary, policy: BehaviourPolicy
) -> Iterator[str]:
    """Nothing passes for lack of evidence."""
    longest = max(len(prompt.expected) for prompt in behaviour.prompts)
    if policy.min_greedy and not longest:
        yield (
            f"No golden prompt asks for greedy text, so min-greedy = {policy.min_greedy} was not "
            "tested; set greedy in a prompt, or min-greedy to 0."
        )
    # The default means as many as there are, up to ten; a number that somebody wrote means that.
    elif policy.min_greedy > longest and "min_greedy" in policy.model_fields_set:
        yield (
            f"No golden prompt asks for more than {longest} greedy tokens, so min-greedy = "
            f"{policy.min_greedy} was not tested; raise greedy in a prompt, or lower min-greedy."
        )
    most = policy.max_perplexity_increase
    if most is not None and summary.perplexity_increase is None:
        yield (
            f"Perplexity is not known, so max-perplexity-increase = {most:g} was not tested; it "
            "needs a prompt of three tokens, and evidence recorded with it."
        )


def _prompts(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[str]:
    found = [unchanged(prompt, policy) for prompt in behaviour.prompts]
    if not sum(found) >= policy.min_unchanged_prompts * len(found):
        changed = [p.name for p, same in zip(behaviour.prompts, found, strict=True) if not same]
        yield (
            f"{sum(found)} of {len(found)} prompts are unchanged, below min-unchanged-prompts = "
            f"{policy.min_unchanged_prompts:g}: not {', '.join(map(repr, changed))}."
        )


def _greedy(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[str]:
    """A first difference where the reference itself was undecided is a tie, not an error."""
    for prompt in behaviour.prompts:
        wanted = min(policy.min_greedy, len(prompt.expected))
        if prompt.agreed < wanted and not is_tie(prompt, policy):
            yield (
                f"Greedy text of {prompt.name!r} differs from token {prompt.agreed + 1} on: "
                f"{prompt.text!r} instead of {prompt.expected_text!r} (the reference led by "
                f"{prompt.leads[prompt.agreed]:.2f}, ties count below {policy.tie_margin:g})."
            )
