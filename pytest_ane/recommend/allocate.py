"""Allocation: the fewest bytes whose predicted loss stays within a budget.

The prediction: KL is second order in a small perturbation of the weights, so a unit's loss is the
KL measured at one of its settings, scaled by the squared error of another; losses of units add up.
What falls between them is one factor, fitted to measured whole stacks by the search. With it, the
best choice for a price of loss is each unit's own best: the Lagrangian relaxation of a knapsack
(Everett 1963, "Generalized Lagrange multiplier method", Operations Research 11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pytest_ane.recommend.units import Choice, Option, Unit

Caps: TypeAlias = Mapping[Unit, float]
"""The most squared error that a unit may have; any without an entry."""

_ROUNDS = 40
_EXPONENTS = (-20.0, 80.0)
"""Prices in bytes per nat are powers of two from the first to the second."""


def predicted(choice: Choice, losses: Mapping[Unit, float]) -> float:
    """Predicted KL of a choice; `losses` are the units' KL per squared error."""
    return sum(losses[unit] * unit.option(setting).sse for unit, setting in choice.items())


def size_of(choice: Choice) -> int:
    """Bytes of all units, as stored under a choice."""
    return sum(unit.option(setting).size for unit, setting in choice.items())


def allocate(
    units: Sequence[Unit], losses: Mapping[Unit, float], budget: float, caps: Caps
) -> dict[Unit, str]:
    """The smallest choice for a price of loss at which the predicted loss is within the budget.

    Where no choice is, that of the least loss.
    """
    best = _at(units, losses, caps, math.inf)
    low, high = _EXPONENTS
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        choice = _at(units, losses, caps, 2.0**middle)
        if predicted(choice, losses) <= budget:
            best, high = choice, middle
        else:
            low = middle
    return best


def _at(
    units: Sequence[Unit], losses: Mapping[Unit, float], caps: Caps, price: float
) -> dict[Unit, str]:
    """Every unit's best option at a price in bytes per nat; at an infinite one the most exact."""

    def cost(unit: Unit, option: Option) -> tuple[float, float]:
        loss = losses[unit] * option.sse
        return (loss, option.size) if price == math.inf else (option.size + price * loss, loss)

    return {
        unit: min(allowed(unit, caps), key=lambda option: cost(unit, option)).setting
        for unit in units
    }


def allowed(unit: Unit, caps: Caps) -> Sequence[Option]:
    """The options within a unit's cap; the most exact one where none is."""
    cap = caps.get(unit, math.inf)
    return [o for o in unit.options if o.sse <= cap] or [min(unit.options, key=lambda o: o.sse)]
