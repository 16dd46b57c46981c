"""Lines about a search for the shards to blame."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ane.gates.verdict import Verdict
from pytest_ane.report.verdict import reasons, row
from pytest_ane.tools._bisect_analysis import Bisection, StackEvaluation

_NAMED = 6


def evaluation_line(evaluation: StackEvaluation, number: int, shards: int) -> str:
    """One stack that was evaluated: `3. exact: L07 - green (top-1 95.1%, KL 0.0265, ...)`."""
    values = evaluation.verdict.values
    colour = "green" if evaluation.verdict.status == "passed" else "red"
    numbers = row(evaluation.verdict)
    if {"top1", "kl.mean", "greedy.agreed"} <= values.keys():
        greedy = f"{values['greedy.agreed']} greedy tokens"
        numbers = f"top-1 {values['top1']:.1%}, KL {values['kl.mean']:.4f}, {greedy}"
    return f"{number:>2}. exact: {_exact(evaluation.exact, shards)} - {colour} ({numbers})"


def sentence(result: Bisection, model: str, shards: int, last: Verdict | None = None) -> str:
    """The shards to blame, and how many stacks the search took; `last` is the last verdict."""
    took = f"{result.evaluations} stack evaluation{'s' if result.evaluations > 1 else ''}"
    if result.outcome == "green":
        return f"{model} is green as it is: no shard is to blame ({took})."
    if result.outcome == "reference":
        why = f": {reasons(last)[0]}" if last is not None and last.reasons else "."
        return f"The reference itself does not meet the policy{why} ({took})"
    if result.outcome == "many":
        return (
            f"More than {len(result.shards)} shards are to blame, so a search for a few ends here: "
            f"the {result.enough} worst of {shards} have to be exact for a green verdict; "
            f"pytest-ane drift shows what each contributes ({took})."
        )
    if len(result.shards) == 1:
        return f"{result.shards[0]} is to blame: exact, it restores the verdict ({took})."
    names = ", ".join(sorted(result.shards))
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
