"""The behaviour gate's opinion. Position 0 is reported apart: it attends to itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pytest_ane.behaviour.measure import Behaviour, PromptResult
from pytest_ane.behaviour.statistics import Position
from pytest_ane.manifest import BehaviourPolicy
from pytest_ane.verdict import Verdict


def judge(behaviour: Behaviour, policy: BehaviourPolicy, model: str) -> Verdict:
    """Passed only if positions beyond the first were compared and every policy holds."""
    positions = [p for prompt in behaviour.prompts for p in prompt.positions[1:]]
    if not positions:
        reason = "No golden prompt has a second position, so nothing was compared; add prompts."
        return Verdict(
            "behaviour", model, "unproven", "nothing was compared", (reason,),
            provenance=behaviour.provenance,
        )  # fmt: skip
    reasons = [
        *_statistics(behaviour, positions, policy),
        *_greedy(behaviour, policy),
        *_undefined(behaviour),
    ]
    if reasons and behaviour.alone:
        reasons.append(_blame(behaviour))
    first = [p.positions[0] for p in behaviour.prompts if p.positions]
    return Verdict(
        gate="behaviour",
        subject=model,
        status="failed" if reasons else "passed",
        summary=f"top-1 {_top1(positions):.1%} · KL {_kl(positions):.4f} · centred cosine min "
        f"{_cosine(positions):.4f} · {len(positions)} positions · greedy {_agreed(behaviour)}",
        reasons=tuple(reasons),
        facts={
            "top1": _top1(positions),
            "kl.mean": _kl(positions),
            "kl.max": float(np.max([p.kl for p in positions])),
            "centred_cosine.min": _cosine(positions),
            "centred_cosine.median": float(np.median([p.centred_cosine for p in positions])),
            "positions": len(positions),
            "first.centred_cosine.min": _cosine(first),
            "greedy.agreed": min(p.agreed for p in behaviour.prompts),
        },
        details=tuple(_details(behaviour)),
        provenance=behaviour.provenance,
    )


def _undefined(behaviour: Behaviour) -> Iterator[str]:
    """NaN fails everywhere, position 0 included: reported apart does not mean excused."""
    for prompt in behaviour.prompts:
        for i, p in enumerate(prompt.positions):
            if not (math.isfinite(p.kl) and math.isfinite(p.centred_cosine)):
                yield f"Logits of {prompt.name!r} at position {i} are not finite or all alike."
                break
    for shard, value in behaviour.alone:
        if math.isnan(value):
            yield f"{shard} gives NaN or only zeros on the reference's own states."


def _statistics(
    behaviour: Behaviour, positions: list[Position], policy: BehaviourPolicy
) -> Iterator[str]:
    """Comparisons are written so that NaN fails every one of them."""
    if not (top1 := _top1(positions)) >= policy.min_top1:
        yield f"Top-1 agreement is {top1:.1%}, below min-top1 = {policy.min_top1:g}."
    if not (mean := _kl(positions)) <= policy.max_kl:
        yield f"Mean KL is {mean:.4f} nats, above max-kl = {policy.max_kl:g}."
    if not (low := _cosine(positions)) >= policy.min_centred_cosine:
        yield (
            f"The lowest centred cosine is {low:.4f}, below min-centred-cosine = "
            f"{policy.min_centred_cosine:g}; first bad position: {_first_bad(behaviour, policy)}."
        )


def _greedy(behaviour: Behaviour, policy: BehaviourPolicy) -> Iterator[str]:
    """A first difference where the reference itself was undecided is a tie, not an error."""
    if policy.min_greedy and not any(prompt.expected for prompt in behaviour.prompts):
        yield (
            f"No golden prompt asks for greedy text, so min-greedy = {policy.min_greedy} was not "
            "tested; set greedy in a prompt, or min-greedy to 0."
        )
    for prompt in behaviour.prompts:
        wanted = min(policy.min_greedy, len(prompt.expected))
        if prompt.agreed < wanted and not prompt.leads[prompt.agreed] < policy.tie_margin:
            yield (
                f"Greedy text of {prompt.name!r} differs from token {prompt.agreed + 1} on: "
                f"{prompt.text!r} instead of {prompt.expected_text!r} (the reference led by "
                f"{prompt.leads[prompt.agreed]:.2f}, ties count below {policy.tie_margin:g})."
            )


def _blame(behaviour: Behaviour) -> str:
    shard, value = _weakest_first(behaviour)[0]
    return f"The worst shard on the reference's own states is {shard} (cosine {value:.6f})."


def _weakest_first(behaviour: Behaviour) -> list[tuple[str, float]]:
    """Lowest cosine first; an undefined one is worse than any number."""
    return sorted(behaviour.alone, key=lambda pair: -2.0 if math.isnan(pair[1]) else pair[1])


def _first_bad(behaviour: Behaviour, policy: BehaviourPolicy) -> str:
    for prompt in behaviour.prompts:
        for i, p in enumerate(prompt.positions[1:], start=1):
            if not p.centred_cosine >= policy.min_centred_cosine:
                return f"{i} of {prompt.name!r} (rank of the reference's token: {p.rank})"
    return "none"


def _details(behaviour: Behaviour) -> Iterator[str]:
    for prompt in behaviour.prompts:
        yield _line(prompt)
    for shard, value in _weakest_first(behaviour)[:5]:
        yield f"{shard} alone: lowest cosine {value:.6f}"


def _line(prompt: PromptResult) -> str:
    rest = prompt.positions[1:]
    if not rest:
        return f"{prompt.name}: one position only"
    worst = min(rest, key=lambda p: -2.0 if math.isnan(p.centred_cosine) else p.centred_cosine)
    tie = ""
    if prompt.agreed < len(prompt.expected):
        tie = f" (the reference led by {prompt.leads[prompt.agreed]:.2f} there)"
    return (
        f"{prompt.name}: top-1 {_top1(list(rest)):.1%}, KL {_kl(list(rest)):.4f}, worst centred "
        f"cosine {worst.centred_cosine:.4f} at position {prompt.positions.index(worst, 1)}, "
        f"position 0 {prompt.positions[0].centred_cosine:.4f}, greedy {prompt.agreed}/"
        f"{len(prompt.expected)}{tie}: {prompt.text!r}"
    )


def _top1(positions: list[Position]) -> float:
    return float(np.mean([p.top1 for p in positions]))


def _kl(positions: list[Position]) -> float:
    return float(np.mean([p.kl for p in positions]))


def _cosine(positions: list[Position]) -> float:
    return float(np.min([p.centred_cosine for p in positions]))


def _agreed(behaviour: Behaviour) -> str:
    return " ".join(f"{p.agreed}/{len(p.expected)}" for p in behaviour.prompts)
