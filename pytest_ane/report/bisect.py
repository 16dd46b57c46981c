"""A search for shards to blame, in words."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ane.analysis.bisect import Bisection, Trial

_NAMED = 6


def trial(found: Trial, number: int, shards: int) -> str:
    """One stack that was evaluated: `3. exact: L07 - green (top-1 95.1%, KL 0.0265, ...)`."""
    facts = found.verdict.facts
    colour = "green" if found.verdict.status == "passed" else "red"
    numbers = found.verdict.summary
    if {"top1", "kl.mean", "greedy.agreed"} <= facts.keys():
        greedy = f"{facts['greedy.agreed']} greedy tokens"
        numbers = f"top-1 {facts['top1']:.1%}, KL {facts['kl.mean']:.4f}, {greedy}"
    return f"{number:>2}. exact: {_exact(found.exact, shards)} - {colour} ({numbers})"


def sentence(found: Bisection, model: str, shards: int, reasons: Sequence[str] = ()) -> str:
    """What the search found, and how many stacks it took; `reasons` say why the last is red."""
    took = f"{found.evaluations} stack evaluation{'s' if found.evaluations > 1 else ''}"
    if found.outcome == "green":
        return f"{model} is green as it is: no shard is to blame ({took})."
    if found.outcome == "reference":
        why = f": {reasons[0]}" if reasons else "."
        return f"The reference itself does not meet the policy{why} ({took})"
    if found.outcome == "many":
        return (
            f"More than {len(found.shards)} shards are to blame, so a search for a few ends here: "
            f"the {found.enough} worst of {shards} have to be exact for a green verdict; "
            f"pytest-ane drift shows what each contributes ({took})."
        )
    if len(found.shards) == 1:
        return f"{found.shards[0]} is to blame: exact, it restores the verdict ({took})."
    names = ", ".join(sorted(found.shards))
    return (
        f"{names} are to blame: exact, they restore the verdict, and none can be spared ({took})."
    )


def _exact(names: Sequence[str], shards: int) -> str:
    if not names:
        return "none"
    if len(names) == shards:
        return "all"
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
