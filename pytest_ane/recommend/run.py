"""A recommendation from start to end: measure sensitivities, single settings, then mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_ane.recommend.evaluate import Measuring
from pytest_ane.recommend.search import Candidate, choice_key, search
from pytest_ane.recommend.units import Unit


def recommend(bench: Measuring, limit: float) -> Iterator[Candidate]:
    """Measured candidates, as they come; `best` of them is the recommendation.

    Single settings come first, smallest first up to the first that passes, for what a mixture
    saves is told against that one.

    Args:
        bench: measures.
        limit: the most mean KL that behaviour allows, in nats.
    """
    units = bench.units()
    for name, choice in singles(units):
        if bench.spent:
            return
        found = bench.candidate(name, choice)
        yield found
        if found.passed:
            break
    if not bench.spent and (losses := bench.losses()):
        yield from search(units, losses, limit, bench)


def singles(units: tuple[Unit, ...]) -> list[tuple[str, Mapping[Unit, str]]]:
    """Every setting that fits all units, smallest first."""
    names = dict.fromkeys(option.setting for unit in units for option in unit.options)
    found = []
    for name in names:
        if all(any(o.setting == name for o in unit.options) for unit in units):
            size = sum(unit.option(name).size for unit in units)
            found.append((size, name, {unit: name for unit in units}))
    return [(name, choice) for _, name, choice in sorted(found, key=lambda each: each[0])]


def best(found: list[Candidate]) -> Candidate | None:
    """The smallest that passed every gate."""
    return min((c for c in found if c.passed), key=lambda c: c.size, default=None)


def best_single(found: list[Candidate]) -> Candidate | None:
    """The smallest of one setting for all that passed every gate."""
    return best([c for c in found if len(set(c.choice.values())) == 1])


__all__ = ["best", "best_single", "choice_key", "recommend", "singles"]
