"""A behaviour measurement in lines of at most 80 columns (but for texts), and as facts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_ane.gates.behaviour.bad import unchanged, weakest_first
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.metrics.logits import LogitSummary

_SHOWN = 5
"""Shards shown."""


def summary_line(behaviour: Behaviour, summary: LogitSummary, count: int) -> str:
    """For the terminal's table, what matters most first."""
    parts = [
        f"top-1 {summary.top1:.1%}",
        f"KL {summary.kl:.4f}",
        f"centred cosine min {summary.centred_cosine.min:.4f}",
    ]
    if (increase := summary.perplexity_increase) is not None:
        parts.append(f"perplexity {increase:+.1%}")
    agreed = " ".join(f"{p.agreed}/{len(p.expected)}" for p in behaviour.prompts)
    return " · ".join([*parts, f"{count} positions", f"greedy {agreed}"])


def facts(
    behaviour: Behaviour, policy: BehaviourPolicy, summary: LogitSummary, count: int
) -> dict[str, float | int | str]:
    """For `user_properties`; `first.` is of position 0, which all others leave out."""
    first = LogitSummary.of([p.positions[0] for p in behaviour.prompts if p.positions])
    found: dict[str, float | int | str] = {
        "top1": summary.top1,
        "kl.mean": summary.kl,
        "kl.median": summary.kls.median,
        "kl.p95": summary.kls.p95,
        "kl.max": summary.kls.max,
        "rank.max": summary.rank,
        "positions": count,
        "first.centred_cosine.min": first.centred_cosine.min,
        "first.kl.max": first.kls.max,
        "greedy.agreed": min(p.agreed for p in behaviour.prompts),
        "greedy.by_prompt": " ".join(str(p.agreed) for p in behaviour.prompts),
        "prompts.unchanged": sum(unchanged(p, policy) for p in behaviour.prompts),
    }
    for name, spread in (("centred_cosine", summary.centred_cosine), ("cosine", summary.cosine)):
        if spread is not None:
            found |= {f"{name}.min": spread.min, f"{name}.p5": spread.p5}
            found[f"{name}.median"] = spread.median
    if summary.perplexity is not None and summary.reference_perplexity is not None:
        found["perplexity"] = summary.perplexity
        found["perplexity.reference"] = summary.reference_perplexity
    heads = [(p.head.kl, len(p.positions) - 1) for p in behaviour.prompts if p.head is not None]
    if total := sum(weight for _, weight in heads):
        # Over the same positions as kl.mean; NaN stays NaN.
        found["head.kl.mean"] = sum(kl * weight for kl, weight in heads) / total
    return found


def details(behaviour: Behaviour) -> Iterator[str]:
    """Some lines a prompt, then the weakest shards."""
    for prompt in behaviour.prompts:
        yield from _prompt(prompt)
    for shard, value in weakest_first(behaviour)[:_SHOWN]:
        yield f"{shard} alone: lowest cosine {value:.6f}"


def _prompt(prompt: PromptResult) -> Iterator[str]:
    rest = prompt.positions[1:]
    if not rest:
        yield f"{prompt.name}: one position only"
        return
    s = LogitSummary.of(rest)
    worst = min(rest, key=lambda p: -2.0 if math.isnan(p.centred_cosine) else p.centred_cosine)
    cosines = s.centred_cosine
    yield f"{prompt.name}: top-1 {s.top1:.1%}, KL {s.kl:.4f}, p95 {s.kls.p95:.4f}{_head(prompt)}"
    yield (
        f"  centred cosine min {worst.centred_cosine:.4f} at {prompt.positions.index(worst, 1)}, "
        f"p5 {cosines.p5:.4f}, median {cosines.median:.4f}; position 0 "
        f"{prompt.positions[0].centred_cosine:.4f}"
    )
    if s.perplexity is not None and s.reference_perplexity is not None:
        yield f"  perplexity {s.perplexity:.3f}, reference {s.reference_perplexity:.3f}"
    yield _greedy(prompt)


def _head(prompt: PromptResult) -> str:
    return "" if prompt.head is None else f"; head alone KL {prompt.head.kl:.4f}"


def _greedy(prompt: PromptResult) -> str:
    tie = ""
    if prompt.agreed < len(prompt.expected):
        tie = f" (the reference led by {prompt.leads[prompt.agreed]:.2f} there)"
    return f"  greedy {prompt.agreed}/{len(prompt.expected)}{tie}: {prompt.text!r}"
