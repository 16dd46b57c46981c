"""Shards that fail their own gates, changed until they pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_ane.recommend.allocate import Caps, allowed
from pytest_ane.recommend.units import Choice, Option, Unit


@dataclass(frozen=True)
class Trouble:
    """What is wrong with a shard as chosen.

    Attributes:
        gate: the gate that failed.
        blame: for fidelity, the error each unit causes alone; empty where it is not its error.
    """

    gate: str
    reason: str
    blame: Mapping[Unit, float]


class Inspector(Protocol):
    """Asks the gates of single shards."""

    def trouble(self, shard: str, choice: Choice) -> Trouble | None:
        """The first gate that a shard as chosen fails; None where it passes all."""
        ...

    @property
    def spent(self) -> bool:
        """Whether time or evaluations are used up."""
        ...


def mended(
    choice: Mapping[Unit, str],
    losses: Mapping[Unit, float],
    caps: dict[Unit, float],
    bench: Inspector,
) -> dict[Unit, str]:
    """The choice with shards that fail their own gates changed until they pass, where they can.

    Too coarse: the unit with the most of the error for the bytes it takes to mend it gets the next
    better setting, and keeps it (`caps`). Too large: the unit that loses least per byte saved gets
    the next smaller one.
    """
    made = dict(choice)
    for shard in dict.fromkeys(unit.shard for unit in made):
        mine = [unit for unit in made if unit.shard == shard]
        for _ in range(sum(len(unit.options) for unit in mine)):
            if bench.spent or (trouble := bench.trouble(shard, made)) is None:
                break
            if trouble.blame:
                step = _finer(mine, made, trouble.blame)
            else:
                step = _smaller(mine, made, losses, caps) if trouble.gate == "compression" else None
            if step is None:
                break
            unit, option = step
            made[unit] = option.setting
            if trouble.blame:
                caps[unit] = option.sse
    return made


def _finer(
    units: Sequence[Unit], choice: Choice, blame: Mapping[Unit, float]
) -> tuple[Unit, Option] | None:
    steps: list[tuple[float, int, Unit, Option]] = []
    for i, unit in enumerate(units):
        now = unit.option(choice[unit])
        for option in unit.options:
            if option.sse < now.sse / 2:
                gain = blame.get(unit, 0.0) * (1 - option.sse / now.sse)
                steps.append((gain / max(option.size - now.size, 1), -i, unit, option))
    return max(steps, key=lambda step: step[:2])[2:] if steps else None


def _smaller(
    units: Sequence[Unit], choice: Choice, losses: Mapping[Unit, float], caps: Caps
) -> tuple[Unit, Option] | None:
    steps: list[tuple[float, int, Unit, Option]] = []
    for i, unit in enumerate(units):
        now = unit.option(choice[unit])
        for option in allowed(unit, caps):
            if option.size < now.size:
                lost = losses[unit] * (option.sse - now.sse)
                steps.append((lost / (now.size - option.size), i, unit, option))
    return min(steps, key=lambda step: step[:2])[2:] if steps else None
