"""A change of speed against a baseline: a regression, the machine's own slowness, or neither."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from pytest_ane.gates.throughput.baseline import Baseline
from pytest_ane.gates.throughput.change import Change
from pytest_ane.gates.throughput.threshold import BLIND, Threshold
from pytest_ane.gates.throughput.words import figure, machine, percent, title

Outcome: TypeAlias = Literal["passed", "warned", "unproven", "failed"]


class Weighed(NamedTuple):
    """What a change amounts to.

    Attributes:
        outcome: `warned` where it is slower by more than the threshold, and the machine itself
            slower by so much that the rest is not; `unproven` where that would hide anything.
        says: why; empty where it passed.
    """

    outcome: Outcome
    says: str = ""


def weigh(change: Change, baseline: Baseline, limit: Threshold) -> Weighed:
    """Hold a change against the threshold, and what is too much against the machine's own."""
    # Written so that NaN is a regression.
    if change.slower <= limit.share:
        return Weighed("passed")
    says = _regression(change, baseline, limit)
    if not change.own_slower <= limit.share:
        return Weighed("failed", says)
    says += f" But the machine itself is slower: its yardstick takes {change.machine:.2f} times as "
    if 1 - 1 / change.machine >= BLIND:
        return Weighed(
            "unproven",
            f"{says}long, and half the speed could pass for that; quieten it, and repeat.",
        )
    own = percent(change.own, signed=True)
    return Weighed("warned", f"{says}long; were it as fast as it was, this would be {own}.")


def _regression(change: Change, baseline: Baseline, limit: Threshold) -> str:
    now, then, date = change.now, change.then, f" of {baseline.when}" if baseline.when else ""
    return (
        f"{title(now).capitalize()}: {figure(now)} is {percent(change.share, signed=True)} on the "
        f"baseline's {figure(then)} (run {baseline.run}{date}), and {percent(limit.share)} is "
        f"allowed ({limit.origin}), on {machine(now)}."
    )
