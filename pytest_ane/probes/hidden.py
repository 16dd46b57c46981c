"""A family shard's probes: hidden states, and the reference's outputs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import LanguageModel, Layout, Routes, residual_of, routing_of
from pytest_ane.manifest import Shard
from pytest_ane.probes.cases import Case
from pytest_ane.probes.seeded import Captured, lengths, seeded

_STEPS = 8
"""Positions, at least, of a seeded probe of a shard with states; two calls of T take 2 T."""

CapturedStates: TypeAlias = Callable[[], Sequence[tuple[str, FloatArray]]]
"""Golden prompts by name with the hidden states `[T, C]` that enter the shard."""


@dataclass(frozen=True, eq=False)
class HiddenProbe:
    """Hidden states `[T, C]` with the reference's outputs for them.

    Attributes:
        start: position in a prompt at which they begin.
        chunk: the largest T of a call; None for one call.
        expected: `[T, C']`; empty until the reference has run.
        residual: `[T, C']` of it that is the residual path alone, where there is one.
        routed: experts that the reference uses at each position, of a routed shard.
    """

    kind: str
    name: str
    start: int
    chunk: int | None
    hidden: FloatArray
    expected: FloatArray
    residual: FloatArray | None = None
    routed: Routes = ()

    def case(self, layout: Layout) -> Case:
        """The probe in the artifact's own inputs, as its layout has them."""
        length = len(self.hidden)
        size = self.chunk or max(length, 1)
        starts = range(0, length, size)
        return Case(
            kind=self.kind,
            name=self.name,
            calls=tuple(layout.inputs(self.hidden[i : i + size], i) for i in starts),
            rows=lambda outputs: {"y": layout.output(outputs)},
            expected={"y": self.expected},
            length=length,
            input_max=float(np.abs(self.hidden).max(initial=0.0)),
            start=self.start,
            residual={} if self.residual is None else {"y": self.residual},
            routed=self.routed,
        )


def answered_probes(
    model: LanguageModel, shard: Shard, captured: CapturedStates
) -> list[HiddenProbe]:
    """A shard's probes with the float32 module's outputs and, where it has them, routes."""
    probes = list(draw_probes(shard, model.layout(shard.id), captured))
    hidden = [probe.hidden for probe in probes]
    expected = model.reference(shard.id)(hidden)
    residual, routing = residual_of(model, shard.id), routing_of(model, shard.id)
    paths = residual(hidden) if residual else [None] * len(probes)
    routes = routing(hidden) if routing else [()] * len(probes)
    return [
        replace(probe, expected=rows, residual=path, routed=route)
        for probe, rows, path, route in zip(probes, expected, paths, routes, strict=True)
    ]


def draw_probes(shard: Shard, layout: Layout, captured: CapturedStates) -> Iterator[HiddenProbe]:
    """A shard's probes with nothing expected; `captured` is called where a kind needs it."""
    probes, stateful = shard.probes, layout.sees == "state"
    unknown = np.zeros((0, 0), np.float32)

    @cache
    def states() -> Sequence[tuple[str, FloatArray]]:
        return captured()

    @cache
    def statistics() -> Captured:
        return Captured.of([hidden for _, hidden in states()])

    for length, chunk in _lengths(shard, stateful):
        for kind, name, hidden in seeded(
            probes.kinds, count=probes.count, seed=probes.seed,
            length=length, width=layout.width, captured=statistics,
        ):  # fmt: skip
            by = f" in steps of {chunk}" if stateful else ""
            yield HiddenProbe(kind, name + by, 0, chunk, hidden, unknown)
    for prompt, hidden in states() if "captured" in probes.kinds else ():
        # Position 0 is an attention sink, so the last is the single-token probe. States need all.
        for start in (0,) if stateful else dict.fromkeys((len(hidden) - 1, 0)):
            part = hidden[start:]
            name = f"captured {prompt} T={len(part)}"
            yield HiddenProbe("captured", name, start, shard.max_tokens, part, unknown)


def _lengths(shard: Shard, stateful: bool) -> list[tuple[int, int]]:
    """`(positions, largest T of a call)` of the seeded probes."""
    if not stateful:
        return [(length, length) for length in lengths(shard.max_tokens)]
    chunks = lengths(min(shard.max_tokens, shard.context))
    return [(min(max(_STEPS, 2 * chunk), shard.context), chunk) for chunk in chunks]


def to_tensors(probes: Sequence[HiddenProbe]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Probes as tensors by name, and the rest as JSON; `{i}.residual` where it is not the input."""
    tensors: dict[str, Any] = {}
    listed = []
    for i, p in enumerate(probes):
        tensors |= {f"{i}.input": p.hidden, f"{i}.expected": p.expected}
        own = p.residual is not None and not np.array_equal(p.residual, p.hidden)
        if own:
            tensors[f"{i}.residual"] = p.residual
        path = "input" if p.residual is not None and not own else None
        listed.append(
            {"kind": p.kind, "name": p.name, "start": p.start, "chunk": p.chunk}
            | ({"residual": path} if path else {})
            | ({"routed": p.routed} if p.routed else {})
        )
    return tensors, listed


def from_tensors(
    tensors: dict[str, FloatArray], listed: Sequence[dict[str, Any]]
) -> Iterator[HiddenProbe]:
    """Inverse of `to_tensors`."""
    for i, p in enumerate(listed):
        hidden = tensors[f"{i}.input"]
        yield HiddenProbe(
            p["kind"], p["name"], p["start"], p["chunk"], hidden, tensors[f"{i}.expected"],
            hidden if p.get("residual") == "input" else tensors.get(f"{i}.residual"),
            tuple(map(tuple, p.get("routed", ()))),
        )  # fmt: skip
