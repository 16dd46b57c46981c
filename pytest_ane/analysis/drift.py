"""How hidden states drift from the reference's along the stack, and what each shard does to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict, TypeAdapter

from pytest_ane.chain.chain import Chain
from pytest_ane.chain.exact import ForcedShard, ReferenceStates, run_all, teacher_forced
from pytest_ane.chain.golden import GoldenPrompt
from pytest_ane.core.arrays import FloatArray
from pytest_ane.families import Streams, apply_output, shard_input
from pytest_ane.gates.behaviour.measure import Behaviour, PromptResult
from pytest_ane.metrics import cosine
from pytest_ane.metrics.logits import compare_logits

_BUDGET = 256 << 20
"""Bytes of logits held at once."""

Say = Callable[[str, int, int], None]
"""Told the shard at work, how many are done, and of how many."""


@dataclass(frozen=True)
class Reading:
    """Rows of several prompts beside the exact ones.

    Attributes:
        cosine: the lowest of a row, `median` the typical; NaN if any is undefined, None where
            both sides are zero in every row, as a pack of experts is that none was chosen of.
        relative_l2: |actual - exact| / |exact| over all rows together, Frobenius norms; NaN or
            infinite where undefined.
        largest: the greatest |actual|.
    """

    cosine: float | None
    median: float | None
    relative_l2: float
    largest: float


@dataclass(frozen=True)
class Readings:
    """Position 0, which attends to itself alone, apart from the rest; None without positions."""

    first: Reading | None
    rest: Reading | None


@dataclass(frozen=True)
class ShardDrift:
    """One shard of the stack.

    Attributes:
        stack: what its output became, in the stack as it is, against the exact stream.
        own: its output on exact states, against the reference's.
        final: hidden states after the last block where it alone is no reference; None for a
            slice of the head, which comes after them.
        end: the same stack's logits.
    """

    shard: str
    stack: Readings
    own: Readings
    final: Readings | None
    end: Behaviour


@dataclass(frozen=True)
class Drift:
    """All shards in running order.

    Attributes:
        end: logits of the stack as it is.
        reference: those of the reference itself, to see whether it meets a policy.
    """

    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="strings")

    shards: tuple[ShardDrift, ...]
    end: Behaviour
    reference: Behaviour
    provenance: Mapping[str, Any]


def measure_drift(
    chain: Chain,
    reference: Chain,
    golden: Sequence[GoldenPrompt],
    states: ReferenceStates,
    provenance: Mapping[str, Any],
    say: Say = lambda *_: None,
) -> Drift:
    """Run the golden prompts through the stack, and through one with each shard alone.

    All stacks go along together, so that the reference reads each shard's weights once for the
    blocks; its head once for every few stacks. Greedy text is not asked for.
    """

    def end(logits: Sequence[FloatArray]) -> Behaviour:
        pairs = zip(golden, logits, strict=True)
        return Behaviour(tuple(_result(g, rows) for g, rows in pairs), (), {})

    walk = _Walk(chain, reference, golden)
    total = len(chain.steps)
    for i, at in enumerate(teacher_forced(chain, golden, states)):
        say(at.step.shard, i, total)
        walk.head(at) if at.step.is_head else walk.block(at)
    whole = end([one["logits"] for one in walk.stack])
    found: list[ShardDrift] = []
    for shard, logits in walk.logits():
        say(f"{shard} alone", len(found), total)
        found.append(replace(walk.found[shard], end=end(logits)))
    return Drift(tuple(found), whole, end([g.logits for g in golden]), dict(provenance))


class _Walk:
    """All stacks on their way: as it is, exact, and with each of the shards so far alone."""

    def __init__(self, chain: Chain, reference: Chain, golden: Sequence[GoldenPrompt]) -> None:
        self._exact = {step.shard: step for step in reference.steps}
        self._heads = [step for step in reference.steps if step.is_head]
        self._golden = golden
        self._alone: dict[str, list[Streams]] = {}
        self._slices: dict[str, list[FloatArray]] = {}
        self.stack: list[Streams] = [{"x": chain.embed(g.ids)} for g in golden]
        self.found: dict[str, ShardDrift] = {}
        self._final: list[FloatArray] = []

    def block(self, at: ForcedShard) -> None:
        """Take all stacks past a block."""
        wire = at.step.wire
        run_all(at.step, self.stack)
        run_all(self._exact[wire.shard], [one for own in self._alone.values() for one in own])
        exact, alone = list(map(dict, at.streams)), list(map(dict, at.streams))
        for one, other, right, own in zip(exact, alone, at.exact, at.own, strict=True):
            apply_output(one, wire, right)
            apply_output(other, wire, own)
        self._alone[wire.shard] = alone
        self._final = [one["x"] for one in exact]
        wanted, now = ([one[wire.gives] for one in part] for part in (exact, self.stack))
        self._note(at, compare_rows(wanted, now))

    def head(self, at: ForcedShard) -> None:
        """Take the stack as it is past a slice of the head."""
        given = at.step.all([shard_input(one, at.step.wire) for one in self.stack])
        for one, rows in zip(self.stack, given, strict=True):
            apply_output(one, at.step.wire, rows)
        self._slices[at.step.shard] = at.own
        self._note(at, compare_rows(at.exact, given))

    def logits(self) -> Iterator[tuple[str, list[FloatArray]]]:
        """Logits by prompt of every stack with one shard alone."""
        size = sum(g.logits.nbytes for g in self._golden) or 1
        names, count = list(self._alone), max(1, _BUDGET // size)
        for group in (names[i : i + count] for i in range(0, len(names), count)):
            streams = [one for name in group for one in self._alone[name]]
            for name in group:
                final = compare_rows(self._final, [one["x"] for one in self._alone.pop(name)])
                self.found[name] = replace(self.found[name], final=final)
            for step in self._heads:
                run_all(step, streams)
            for i, name in enumerate(group):
                ended = streams[i * len(self._golden) : (i + 1) * len(self._golden)]
                yield name, [one.pop("logits") for one in ended]
        start = 0
        for name, own in self._slices.items():
            yield (
                name,
                [_replaced(g.logits, start, o) for g, o in zip(self._golden, own, strict=True)],
            )
            start += own[0].shape[1]

    def _note(self, at: ForcedShard, stack: Readings) -> None:
        own = compare_rows(at.exact, at.own)
        nothing = Behaviour((), (), {})
        self.found[at.step.shard] = ShardDrift(at.step.shard, stack, own, None, nothing)


def compare_rows(exact: Sequence[FloatArray], actual: Sequence[FloatArray]) -> Readings:
    """Readings of `[T, C]` arrays, one pair for each prompt."""
    first = [[x[:1] for x in side] for side in (exact, actual)]
    rest = [[x[1:] for x in side] for side in (exact, actual)]
    return Readings(_reading(*first), _reading(*rest))


def _reading(exact: Sequence[FloatArray], actual: Sequence[FloatArray]) -> Reading | None:
    a = np.concatenate([np.asarray(x, np.float64) for x in exact])
    b = np.concatenate([np.asarray(x, np.float64) for x in actual])
    if not len(a):
        return None
    live = a.any(axis=1) | b.any(axis=1)
    cosines = cosine(a[live], b[live])
    with np.errstate(invalid="ignore", divide="ignore"):
        error, norm = np.linalg.norm(b - a), np.linalg.norm(a)
        relative = 0.0 if error == 0 else float(error / norm)
    return Reading(
        cosine=float(cosines.min()) if len(cosines) else None,
        median=float(np.median(cosines)) if len(cosines) else None,
        relative_l2=relative,
        largest=float(np.abs(b).max(initial=0.0)),
    )


def to_json(drift: Drift) -> str:
    """A drift as JSON, fields as here; what JSON has no number for is "NaN" or "Infinity"."""
    text: bytes = _adapter().dump_json(drift, indent=1)
    return text.decode()


def from_json(text: str) -> Drift:
    """The drift that `to_json` made text of.

    Raises:
        ValueError: a field is missing or of another kind.
    """
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[Drift]:
    return TypeAdapter(Drift)


def _replaced(logits: FloatArray, start: int, columns: FloatArray) -> FloatArray:
    changed: FloatArray = logits.copy()
    changed[:, start : start + columns.shape[1]] = columns
    return changed


def _result(golden: GoldenPrompt, logits: FloatArray) -> PromptResult:
    """Statistics without greedy text, and without the likeliest tokens, which are for people."""
    positions = compare_logits(golden.logits, logits, golden.ids)
    return PromptResult(golden.name, positions, (), (), (), "", "")
