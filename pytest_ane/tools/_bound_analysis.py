"""The roofline bound: no call is faster than its bytes are streamed, or its products computed.

Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pytest_ane.manifest import Shard
from pytest_ane.mlprogram.model import read_model
from pytest_ane.tools._costs import Costs, count_costs
from pytest_ane.tools._devices import Device

_GIGA, _TERA = 1e9, 1e12
_ALL = "all"
"""The kind of the sum."""


@dataclass(frozen=True)
class Roofline:
    """The least time of one call of one shard.

    Attributes:
        streaming: seconds to move weights, states, inputs and outputs.
        computing: seconds to multiply and accumulate.
    """

    streaming: float
    computing: float

    @property
    def seconds(self) -> float:
        """The longer of the two: at best they overlap."""
        return max(self.streaming, self.computing)

    @property
    def binds(self) -> Literal["bandwidth", "compute"]:
        """The resource that takes longer."""
        return "bandwidth" if self.streaming >= self.computing else "compute"


def roofline(costs: Costs, device: Device, *, weights: float = 1.0, macs: float = 1.0) -> Roofline:
    """The bound of one call; `weights` and `macs` scale its weights' bytes and its MACs."""
    stored = costs.weights if device.held is None else device.held * costs.elements
    streamed = weights * stored + costs.states + costs.inputs + costs.outputs
    operations = 2 * macs * costs.padded(device.lanes)
    return Roofline(streamed / (_GIGA * device.bandwidth), operations / (_TERA * device.peak))


@dataclass(frozen=True)
class Group:
    """Shards of one kind that cost the same.

    Attributes:
        kind: `mixture`, `attention`, `head`...
        subject: the shard whose program was counted.
        count: how many there are, itself included.
        at: its costs at a T.
    """

    kind: str
    subject: str
    count: int
    at: Callable[[int], Costs]


def same_costs(
    shards: Sequence[Shard], kind: Callable[[Shard], str], layout: Callable[[Shard], object]
) -> list[list[Shard]]:
    """Shards of one kind, compression and layout together; users' own packages each alone.

    Args:
        shards: in running order.
        kind: a shard's kind.
        layout: its inputs and outputs, compared by their text.
    """
    groups: dict[object, list[Shard]] = {}
    for shard in shards:
        sizes = (shard.max_tokens, shard.context, shard.target)
        built = (kind(shard), shard.requested.model_dump_json(), sizes, repr(layout(shard)))
        groups.setdefault(shard.id if shard.artifact else built, []).append(shard)
    return list(groups.values())


def counted(
    kind: str,
    shards: Sequence[Shard],
    built: Callable[[Shard], Path | None],
    build: Callable[[Shard], Path],
) -> list[Group]:
    """Built shards are counted individually; unbuilt ones by one representative.

    The representative is the built shard nearest to the middle, for a model's first and last may
    differ; where none is built, the one in the middle is built now.
    """
    paths = {shard.id: path for shard in shards if (path := built(shard)) is not None}
    middle = len(shards) // 2
    if not paths:
        shard = shards[middle]
        return [Group(kind, shard.id, len(shards), costs_of(build(shard), shard.function))]
    places = [i for i, shard in enumerate(shards) if shard.id in paths]
    chosen = shards[min(places, key=lambda i: abs(i - middle))].id
    others = len(shards) - len(paths)
    functions = {shard.id: shard.function for shard in shards}
    return [
        Group(kind, name, 1 + (others if name == chosen else 0), costs_of(path, functions[name]))
        for name, path in paths.items()
    ]


def costs_of(package: Path, function: str | None = None) -> Callable[[int], Costs]:
    """Costs of a package, or of one of its functions, by T.

    Raises:
        ProgramError: when called, where it cannot be read.
    """

    @lru_cache
    def at(tokens: int) -> Costs:
        return count_costs(read_model(package, weights=False, function=function), tokens)

    return at


@dataclass(frozen=True)
class KindBound:
    """Shards of one kind in a call of the whole model.

    Attributes:
        kind: as of their group.
        count: how many.
        weights, states, held: bytes of all of them.
        macs: of all of them.
        intensity: floating-point operations per byte streamed.
        streaming, computing, seconds: bounds, summed; shards run one after the other.
        bound_by: the resource that binds: `bandwidth`, `compute`, or `both` among them.
    """

    kind: str
    count: int
    weights: int
    states: int
    held: int
    macs: int
    intensity: float
    streaming: float
    computing: float
    seconds: float
    bound_by: str


@dataclass(frozen=True)
class CallBound:
    """One call of all shards at a T.

    Attributes:
        tokens: T; None where shapes are fixed.
        kinds: in running order.
        total: of all kinds together.
        half_weights, half_macs: seconds with weights of half the bytes, and with half the MACs.
        unpadded: seconds if the device pads no axis to its lane width.
    """

    tokens: int | None
    kinds: tuple[KindBound, ...]
    total: KindBound
    half_weights: float
    half_macs: float
    unpadded: float

    @property
    def rate(self) -> float:
        """The most tokens a second, or calls where shapes are fixed."""
        return self.rate_of(self.total.seconds)

    def rate_of(self, seconds: float) -> float:
        """Tokens a second of a call that takes so long."""
        return (self.tokens or 1) / seconds


def bound_call(groups: Sequence[Group], device: Device, tokens: int) -> CallBound:
    """The bound of one call of all shards.

    Raises:
        ExecutionError: a shard does not take so many tokens.
    """
    costs = [(group, group.at(tokens)) for group in groups]

    def total(on: Device, *, weights: float = 1.0, macs: float = 1.0) -> float:
        return sum(g.count * roofline(c, on, weights=weights, macs=macs).seconds for g, c in costs)

    def of_kind(kind: str) -> KindBound:
        chosen = [(g.count, c) for g, c in costs if kind in (g.kind, _ALL)]
        return _sum(kind, chosen, device)

    return CallBound(
        tokens=None if all(c.tokens is None for _, c in costs) else tokens,
        kinds=tuple(map(of_kind, dict.fromkeys(group.kind for group in groups))),
        total=of_kind(_ALL),
        half_weights=total(device, weights=0.5),
        half_macs=total(device, macs=0.5),
        unpadded=total(device.model_copy(update={"lanes": 1})),
    )


def _sum(kind: str, costs: Sequence[tuple[int, Costs]], device: Device) -> KindBound:
    def total(value: Callable[[Costs, Roofline], float]) -> Any:
        return sum(n * value(c, roofline(c, device)) for n, c in costs)

    streaming, macs = total(lambda _, b: b.streaming), total(lambda c, _: c.macs)
    binding = {roofline(c, device).binds for _, c in costs}
    return KindBound(
        kind=kind,
        count=sum(n for n, _ in costs),
        weights=total(lambda c, _: c.weights),
        states=total(lambda c, _: c.states),
        held=total(lambda c, _: c.held),
        macs=macs,
        intensity=2 * macs / (streaming * _GIGA * device.bandwidth) if streaming else math.inf,
        streaming=streaming,
        computing=total(lambda _, b: b.computing),
        seconds=total(lambda _, b: b.seconds),
        bound_by=binding.pop() if len(binding) == 1 else "both",
    )
