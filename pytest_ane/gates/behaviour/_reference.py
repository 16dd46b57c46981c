"""Whether the reference itself is right: what it shares with the shards, no comparison sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_ane.gates.behaviour.measure import Behaviour
from pytest_ane.gates.verdict import Finding
from pytest_ane.manifest.policy import BehaviourPolicy
from pytest_ane.mlprogram.metrics.logits import perplexity_bound


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
