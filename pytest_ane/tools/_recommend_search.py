"""The search: allocate, repair shards that fail their gates, measure the whole stack, go on.

Pure: measurements come from an `Evaluator`, and only what it measured is ever called passed.

The prediction: KL is second order in a small perturbation of the weights, so a unit's loss is the
KL measured at one of its settings, scaled by the squared error of another; losses of units add up.
What falls between them is one factor, fitted to measured whole stacks by the search. With it, the
best choice for a price of loss is each unit's own best: the Lagrangian relaxation of a knapsack
(Everett 1963, "Generalized Lagrange multiplier method", Operations Research 11).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import Protocol, TypeAlias

from pytest_ane.gates.compression.measure import CompressionMeasurement
from pytest_ane.gates.verdict import Status
from pytest_ane.manifest import Settings, Uncompressed
from pytest_ane.manifest.compression import override_keys, setting_keys
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.weights import Weight


@dataclass(frozen=True)
class Option:
    """A setting for a unit: bytes as stored, and the sum of squared differences from fp16."""

    setting: str
    size: int
    sse: float


@dataclass(frozen=True)
class Unit:
    """Weights of one shard that are alike but for numbers in their names.

    `glob` names them and no others of the shard; settings that do not fit them are no options, and
    the smallest comes first.
    """

    shard: str
    glob: str
    options: tuple[Option, ...]

    def option(self, setting: str) -> Option:
        """The option of a setting, which must be one of the unit's."""
        return next(o for o in self.options if o.setting == setting)

    def __str__(self) -> str:
        return f"{self.shard} {self.glob}"


Choice: TypeAlias = Mapping[Unit, str]
"""A setting for every unit of a model."""


def units_of(
    shard: str, built: Mapping[str, CompressionMeasurement], keep: Sequence[str]
) -> tuple[Unit, ...]:
    """The units of a shard, from a compression measurement by setting, each for all weights.

    A weight that some setting compresses is in a unit, unless `keep` names it.
    """
    tables = {name: {w.name: w for w in m.census.weights} for name, m in built.items()}
    errors = {name: {d.name: d.sse for d in m.distortions} for name, m in built.items()}
    measured = set.intersection(*map(set, errors.values()))
    compressed = {w.name: None for table in tables.values() for w in table.values() if w.stages}
    names = [n for n in compressed if n in measured and not any(fnmatchcase(n, k) for k in keep)]
    everything = {name for table in tables.values() for name in table}
    return tuple(
        Unit(shard, glob, options)
        for glob, group in _grouped(names, everything).items()
        if (options := _options(group, tables, errors))
    )


def _grouped(names: Sequence[str], everything: set[str]) -> dict[str, list[str]]:
    """Names by the glob that takes numbers for any; by itself where that would name others."""
    groups = grouped((re.sub(r"\d+", "*", name), name) for name in names)
    distinct: dict[str, list[str]] = {}
    for glob, group in groups.items():
        is_exact = {name for name in everything if fnmatchcase(name, glob)} == set(group)
        distinct |= {glob: group} if len(group) > 1 and is_exact else {n: [n] for n in group}
    return distinct


def _options(
    names: Sequence[str],
    tables: Mapping[str, Mapping[str, Weight]],
    errors: Mapping[str, Mapping[str, float]],
) -> tuple[Option, ...]:
    options = []
    for setting, weights in tables.items():
        mine = [weights[name] for name in names if name in weights]
        if len(mine) == len(names) and all(weight.stages for weight in mine):
            size = sum(weight.compressed_bytes for weight in mine)
            options.append(Option(setting, size, sum(errors[setting][name] for name in names)))
    return tuple(sorted(options, key=lambda o: (o.size, o.sse)))


def shard_settings(
    units: Sequence[Unit], choice: Choice, menu: Mapping[str, Settings], keep: Sequence[str]
) -> Settings:
    """The compression table of a shard that gives every unit its setting.

    The setting that most bytes have is the table's own, the others are overrides.
    """
    if not units:
        return Uncompressed()
    weight: Counter[str] = Counter()
    for unit in units:
        weight[choice[unit]] += unit.options[-1].size
    # Of equals the first in the menu, so that the same choice always makes the same table.
    order = list(menu)
    main = max(weight, key=lambda name: (weight[name], -order.index(name)))
    overrides = [
        {"weights": unit.glob} | override_keys(menu[choice[unit]], menu[main])
        for unit in units
        if choice[unit] != main
    ]
    table = setting_keys(menu[main]) | {"keep": list(keep), "overrides": overrides}
    return type(menu[main]).model_validate(table)


_CLOSE = 1.02
"""A passing and a failing loss as near as this: bisection has nothing more to find."""
_SPREAD = 0.25
"""By which predicted losses are varied, once bisection is through."""
_IDLE = 8
"""Choices in a row that were measured before: there is nothing new."""
_ROUNDS = 40
_EXPONENTS = (-20.0, 80.0)
"""Prices in bytes per nat are powers of two from the first to the second."""

Losses: TypeAlias = Mapping[Unit, float]
"""KL in nats per squared error of every unit."""
Caps: TypeAlias = Mapping[Unit, float]
"""The most squared error that a unit may have; any without an entry."""


@dataclass(frozen=True)
class Candidate:
    """A measured model: bytes of all packages, mean KL in nats, the worst status of all gates.

    `kl` is NaN where a shard's gate failed before, `facts` are the worst cosine, top-1 and so on.
    """

    name: str
    choice: Choice
    size: int
    kl: float
    status: Status
    reasons: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.status == "passed"


Failure: TypeAlias = tuple[str, Mapping[Unit, float]]
"""The gate that a shard fails and, for fidelity alone, the error that each unit causes alone."""


class Evaluator(Protocol):
    """Measures candidates; all that a search knows of a model comes from here.

    `spent` says that time or evaluations are used up; `units` are in running order, `losses` their
    KL in nats per squared error, none if none was measured. `failure` is the first gate that a
    shard fails under a choice, None where it passes all; a `candidate` has been through all gates.
    """

    @property
    def spent(self) -> bool: ...
    def units(self) -> tuple[Unit, ...]: ...
    def losses(self) -> dict[Unit, float]: ...
    def failure(self, shard: str, choice: Choice) -> Failure | None: ...
    def candidate(self, name: str, choice: Choice) -> Candidate: ...


def recommend(evaluator: Evaluator, limit: float) -> Iterator[Candidate]:
    """Measured candidates, as they come; `best` of them is the recommendation.

    Single settings come first, smallest first up to the first that passes, since a mixture's saving
    is reported relative to it. `limit` is the most mean KL that behaviour allows, in nats.
    """
    units = evaluator.units()
    sizes = grouped((option.setting, option.size) for unit in units for option in unit.options)
    fitting = {name: sum(each) for name, each in sizes.items() if len(each) == len(units)}
    for name in sorted(fitting, key=fitting.__getitem__):
        if evaluator.spent:
            return
        candidate = evaluator.candidate(name, dict.fromkeys(units, name))
        yield candidate
        if candidate.passed:
            break
    if not evaluator.spent and (losses := evaluator.losses()):
        yield from search(units, losses, limit, evaluator)


def best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The smallest candidate that passed every gate; None if none did."""
    return min((c for c in candidates if c.passed), key=lambda c: c.size, default=None)


def search(
    units: Sequence[Unit], losses: Losses, limit: float, evaluator: Evaluator
) -> Iterator[Candidate]:
    """Measured candidates, as they come; the smallest that passed is the result.

    First bisection on the predicted loss, whose scale the measured KL corrects, from `limit` on;
    then variants near the border, with losses varied at random (seeded).
    """
    caps: dict[Unit, float] = {}
    seen: dict[tuple[str, ...], Candidate] = {}

    def chosen(losses: Losses, budget: float) -> dict[Unit, str]:
        return repaired(allocate(units, losses, budget, caps), losses, caps, evaluator)

    def measured(choice: Choice) -> Candidate:
        candidate = evaluator.candidate(f"mixed {len(seen) + 1}", choice)
        seen[tuple(choice.values())] = candidate
        return candidate

    low, high, budget, idle = 0.0, math.inf, limit, 0
    while not evaluator.spent and idle < _IDLE and not (low and high / low < _CLOSE):
        choice = chosen(losses, budget)
        if evaluator.spent:
            return
        candidate = seen.get(tuple(choice.values()))
        idle = idle + 1 if candidate else 0
        if candidate is None:
            yield (candidate := measured(choice))
        low, high = (max(low, budget), high) if candidate.passed else (low, min(high, budget))
        budget = _next(low, high, budget, limit, candidate, predicted(choice, losses))
    # Sensitivities are estimates: other choices of about the loss that passed may do better.
    draw, edge, idle = Random(0), low, 0
    while low and idle < _IDLE and not evaluator.spent:
        varied = {unit: loss * draw.lognormvariate(0, _SPREAD) for unit, loss in losses.items()}
        choice = chosen(varied, edge * 1.1)
        if tuple(choice.values()) in seen:
            idle += 1
        elif not evaluator.spent:
            idle = 0
            yield (candidate := measured(choice))
            edge = edge * 1.05 if candidate.passed else max(low * 0.9, edge * 0.98)


def _next(
    low: float, high: float, budget: float, limit: float, candidate: Candidate, reached: float
) -> float:
    if low and high < math.inf:
        return math.sqrt(low * high)
    ratio = limit / candidate.kl if candidate.kl > 0 else 1.0
    suggested = reached * ratio * (1.05 if candidate.passed else 0.9)
    if candidate.passed:
        return min(max(suggested, budget * 1.1), budget * 8)
    return max(min(suggested, budget / 1.15), budget / 8)


def repaired(
    choice: Choice, losses: Losses, caps: dict[Unit, float], evaluator: Evaluator
) -> dict[Unit, str]:
    """The choice with shards that fail their own gates changed until they pass, where they can.

    Too coarse: the unit with the most error per byte of a better setting gets and keeps that
    (`caps`). Too large: the unit that loses least per byte saved gets the next smaller one.
    """
    made = dict(choice)
    for shard in dict.fromkeys(unit.shard for unit in made):
        mine = [unit for unit in made if unit.shard == shard]
        for _ in range(sum(len(unit.options) for unit in mine)):
            if evaluator.spent or (failure := evaluator.failure(shard, made)) is None:
                break
            gate, blame = failure
            if not blame and gate != "compression":
                break
            now = {unit: unit.option(made[unit]) for unit in mine}
            step = _finer(now, blame) if blame else _smaller(now, losses, caps)
            if step is None:
                break
            unit, option = step
            made[unit] = option.setting
            if blame:
                caps[unit] = option.sse
    return made


def _finer(now: Mapping[Unit, Option], blame: Mapping[Unit, float]) -> tuple[Unit, Option] | None:

    def gain(step: tuple[Unit, Option]) -> float:
        unit, option = step
        less = blame.get(unit, 0.0) * (1 - option.sse / now[unit].sse)
        return less / max(option.size - now[unit].size, 1)

    steps = ((u, option) for u in now for option in u.options if option.sse < now[u].sse / 2)
    return max(steps, key=gain, default=None)


def _smaller(now: Mapping[Unit, Option], losses: Losses, caps: Caps) -> tuple[Unit, Option] | None:

    def loss(step: tuple[Unit, Option]) -> float:
        unit, option = step
        return losses[unit] * (option.sse - now[unit].sse) / (now[unit].size - option.size)

    steps = ((u, option) for u in now for option in allowed(u, caps) if option.size < now[u].size)
    return min(steps, key=loss, default=None)


def predicted(choice: Choice, losses: Losses) -> float:
    """Predicted KL of a choice."""
    return sum(losses[unit] * unit.option(setting).sse for unit, setting in choice.items())


def allocate(units: Sequence[Unit], losses: Losses, budget: float, caps: Caps) -> dict[Unit, str]:
    """The smallest choice whose predicted loss is within the budget, else that of least loss."""
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


def _at(units: Sequence[Unit], losses: Losses, caps: Caps, price: float) -> dict[Unit, str]:
    """Every unit's best option at a price in bytes per nat; at an infinite one the most exact."""

    def cost(unit: Unit, option: Option) -> tuple[float, float]:
        loss = losses[unit] * option.sse
        return (loss, option.size) if price == math.inf else (option.size + price * loss, loss)

    return {unit: min(allowed(unit, caps), key=lambda o: cost(unit, o)).setting for unit in units}


def allowed(unit: Unit, caps: Caps) -> Sequence[Option]:
    """The options within a unit's cap; the most exact one where none is."""
    cap = caps.get(unit, math.inf)
    return [o for o in unit.options if o.sse <= cap] or [min(unit.options, key=lambda o: o.sse)]
