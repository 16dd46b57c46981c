"""The roofline bound: no call is faster than its bytes are streamed, or its products computed.

Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_ane.analysis.costs import Costs
from pytest_ane.analysis.devices import Device

_GIGA, _TERA = 1e9, 1e12


@dataclass(frozen=True)
class Bound:
    """What a call takes at least.

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
        """Which of them it is."""
        return "bandwidth" if self.streaming >= self.computing else "compute"


def bound(costs: Costs, device: Device, *, weights: float = 1.0, macs: float = 1.0) -> Bound:
    """The bound of one call; `weights` and `macs` scale its weights' bytes and its MACs."""
    stored = costs.weights if device.held is None else device.held * costs.elements
    streamed = weights * stored + costs.states + costs.inputs + costs.outputs
    operations = 2 * macs * costs.filled(device.lanes)
    return Bound(streamed / (_GIGA * device.bandwidth), operations / (_TERA * device.peak))


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


@dataclass(frozen=True)
class Part:
    """Shards of one kind in a call of the whole model.

    Attributes:
        kind: as of their group.
        count: how many.
        weights, states, held: bytes of all of them.
        macs: of all of them.
        intensity: floating-point operations per byte streamed.
        streaming, computing, seconds: bounds, summed; shards run one after the other.
        bound_by: which of the two binds: `bandwidth`, `compute`, or `both` among them.
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
class Call:
    """One call of all shards at a T.

    Attributes:
        tokens: T; None where shapes are fixed.
        parts: by kind, in running order.
        half_weights, half_macs: seconds with weights of half the bytes, and with half the MACs.
        bare: seconds if the device fills up no axis.
    """

    tokens: int | None
    parts: tuple[Part, ...]
    half_weights: float
    half_macs: float
    bare: float

    @property
    def seconds(self) -> float:
        """The least a call takes."""
        return sum(part.seconds for part in self.parts)

    @property
    def rate(self) -> float:
        """The most tokens a second, or calls where shapes are fixed."""
        return self.rate_of(self.seconds)

    def rate_of(self, seconds: float) -> float:
        """Tokens a second of a call that takes so long."""
        return (self.tokens or 1) / seconds

    def share(self, measured: float) -> float:
        """How much of the bound a measured number of tokens a second is."""
        return measured / self.rate


def call(groups: Sequence[Group], device: Device, tokens: int) -> Call:
    """The bound of one call of all shards.

    Raises:
        ExecutionError: a shard does not take so many tokens.
    """
    costs = [(group, group.at(tokens)) for group in groups]
    kinds = dict.fromkeys(group.kind for group in groups)

    def total(on: Device, *, weights: float = 1.0, macs: float = 1.0) -> float:
        return sum(g.count * bound(c, on, weights=weights, macs=macs).seconds for g, c in costs)

    return Call(
        tokens=None if all(one.tokens is None for _, one in costs) else tokens,
        parts=tuple(
            _part(kind, [(g.count, one) for g, one in costs if g.kind == kind], device)
            for kind in kinds
        ),
        half_weights=total(device, weights=0.5),
        half_macs=total(device, macs=0.5),
        bare=total(device.model_copy(update={"lanes": 1})),
    )


def _part(kind: str, costs: Sequence[tuple[int, Costs]], device: Device) -> Part:
    bounds = [(count, bound(one, device)) for count, one in costs]
    streaming = sum(count * found.streaming for count, found in bounds)
    macs = sum(count * one.macs for count, one in costs)
    binding = {found.binds for _, found in bounds}
    return Part(
        kind=kind,
        count=sum(count for count, _ in costs),
        weights=sum(count * one.weights for count, one in costs),
        states=sum(count * one.states for count, one in costs),
        held=sum(count * one.held for count, one in costs),
        macs=macs,
        intensity=2 * macs / (streaming * _GIGA * device.bandwidth) if streaming else math.inf,
        streaming=streaming,
        computing=sum(count * found.computing for count, found in bounds),
        seconds=sum(count * found.seconds for count, found in bounds),
        bound_by=binding.pop() if len(binding) == 1 else "both",
    )
