"""The search: allocate, mend shards that fail their gates, measure the whole stack, go on.

Pure: what is measured comes from `Bench`, and only what it measured is ever called passed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from pytest_ane.recommend.allocate import allocate, predicted
from pytest_ane.recommend.mend import Inspector, mended
from pytest_ane.recommend.units import Choice, Unit

_CLOSE = 1.02
"""A passing and a failing loss as near as this: bisection has nothing more to find."""
_SPREAD = 0.25
"""By which predicted losses are varied, once bisection is through."""
_IDLE = 8
"""Choices in a row that were measured before: there is nothing new."""


@dataclass(frozen=True)
class Candidate:
    """A measured model.

    Attributes:
        name: what it is, for the table.
        size: bytes of all packages.
        kl: measured mean KL in nats; NaN where a shard's gate failed before.
        passed: every gate of every shard and of the whole stack.
        reasons: why not, a sentence each.
        facts: of the gates: worst cosine, top-1 and so on.
    """

    name: str
    choice: Choice
    size: int
    kl: float
    passed: bool
    reasons: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)


class Bench(Inspector, Protocol):
    """What measures."""

    def candidate(self, name: str, choice: Choice) -> Candidate:
        """All gates of a whole model."""
        ...


def search(
    units: Sequence[Unit], losses: Mapping[Unit, float], limit: float, bench: Bench
) -> Iterator[Candidate]:
    """Measured candidates, as they come; the smallest that passed is the result.

    First bisection on the predicted loss, whose scale the measured KL corrects, between what passed
    and what failed; then variants near the border, with losses varied at random (seeded).

    Args:
        units: what gets a setting.
        losses: KL per squared error by unit.
        bench: measures.
        limit: the most mean KL that behaviour allows, in nats; where the search starts.
    """
    caps: dict[Unit, float] = {}
    low, high, budget, idle = 0.0, math.inf, limit, 0
    seen: dict[tuple[str, ...], Candidate] = {}
    while not bench.spent and idle < _IDLE and not (low and high / low < _CLOSE):
        choice = mended(allocate(units, losses, budget, caps), losses, caps, bench)
        if bench.spent:
            return
        idle += 1
        if (found := seen.get(choice_key(choice))) is None:
            found, idle = bench.candidate(f"mixed {len(seen) + 1}", choice), 0
            seen[choice_key(choice)] = found
            yield found
        low, high = (max(low, budget), high) if found.passed else (low, min(high, budget))
        budget = _next(low, high, budget, limit, found, predicted(choice, losses))
    # Sensitivities are estimates: other choices of about the loss that passed may do better.
    draw, edge, idle = Random(0), low, 0
    while low and idle < _IDLE and not bench.spent:
        idle += 1
        varied = {unit: loss * draw.lognormvariate(0, _SPREAD) for unit, loss in losses.items()}
        choice = mended(allocate(units, varied, edge * 1.1, caps), varied, caps, bench)
        if choice_key(choice) in seen or bench.spent:
            continue
        found, idle = bench.candidate(f"mixed {len(seen) + 1}", choice), 0
        seen[choice_key(choice)] = found
        yield found
        edge = edge * 1.05 if found.passed else max(low * 0.9, edge * 0.98)


def choice_key(choice: Choice) -> tuple[str, ...]:
    """What tells choices apart."""
    return tuple(choice.values())


def _next(
    low: float, high: float, budget: float, limit: float, found: Candidate, reached: float
) -> float:
    """The next budget: between what passed and what failed, or as the measured KL suggests."""
    if low and high < math.inf:
        return math.sqrt(low * high)
    ratio = limit / found.kl if found.kl > 0 else 1.0
    suggested = reached * ratio * (1.05 if found.passed else 0.9)
    if found.passed:
        return min(max(suggested, budget * 1.1), budget * 8)
    return max(min(suggested, budget / 1.15), budget / 8)
