"""A model whose sensitivities are known, and an evaluator that measures it as the real one."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pytest_ane.tools._recommend_search import Candidate, Choice, Failure, Option, Unit

BITS = {"4": 4, "6": 6, "8": 8}


def unit(shard: str, name: str, elements: int = 1000, energy: float = 1.0) -> Unit:
    """A unit with settings of 4, 6 and 8 bits; each bit quarters the squared error."""
    options = (Option(s, elements * b // 8, energy * 4.0**-b) for s, b in BITS.items())
    return Unit(shard, name, tuple(options))


def model(count: int, seed: int) -> tuple[tuple[Unit, ...], dict[Unit, float]]:
    """Shards of two units each, with sensitivities over three decades."""
    draw = Random(seed)
    names = [(f"L{i:02d}", name) for i in range(count) for name in ("q", "o")]
    units = tuple(unit(s, n, draw.randrange(500, 5000), draw.uniform(0.5, 2)) for s, n in names)
    return units, {each: 10 ** draw.uniform(-2, 1) for each in units}


def size_of(choice: Choice) -> int:
    """Bytes of all units under a choice."""
    return sum(unit.option(setting).size for unit, setting in choice.items())


class SimulatedEvaluator:
    """KL is the sum of true losses, times a factor that nobody told the search.

    Attributes:
        stacks: whole models that were measured, by name.
    """

    def __init__(
        self,
        losses: Mapping[Unit, float],
        limit: float,
        *,
        factor: float = 1.0,
        needs: Mapping[Unit, str] | None = None,
        most: Mapping[str, int] | None = None,
        stacks: int = 40,
    ) -> None:
        self.losses, self.limit, self.factor = losses, limit, factor
        self.needs, self.most = needs or {}, most or {}
        self.left = stacks
        self.stacks: list[Candidate] = []

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def failure(self, shard: str, choice: Choice) -> Failure | None:
        """A unit in `needs` must have at least so many bits; a shard at most `most` bytes."""
        mine = {u: s for u, s in choice.items() if u.shard == shard}
        short = [u for u, s in mine.items() if int(s) < int(self.needs.get(u, "0"))]
        if short:
            return "fidelity", {u: 1.0 * (u in short) for u in mine}
        if sum(u.option(s).size for u, s in mine.items()) > self.most.get(shard, 10**9):
            return "compression", {}
        return None

    def kl(self, choice: Choice) -> float:
        return self.factor * sum(self.losses[u] * u.option(s).sse for u, s in choice.items())

    def candidate(self, name: str, choice: Choice) -> Candidate:
        assert self.left > 0, "nothing may be measured once all is spent"
        self.left -= 1
        kl = self.kl(choice)
        shards = dict.fromkeys(u.shard for u in choice)
        reasons = [t[0] for s in shards if (t := self.failure(s, choice))]
        reasons += ["KL"] if not kl <= self.limit else []
        size = sum(u.option(s).size for u, s in choice.items())
        self.stacks.append(
            Candidate(name, choice, size, kl, "failed" if reasons else "passed", tuple(reasons))
        )
        return self.stacks[-1]


def single(units: tuple[Unit, ...], setting: str) -> dict[Unit, str]:
    return dict.fromkeys(units, setting)
