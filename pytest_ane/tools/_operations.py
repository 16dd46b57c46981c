"""Two programs on the same inputs, operation by operation.

`diff_programs` compares two packages. `suspect_operations` finds operations whose inputs agree and
whose outputs do not. For that, the program as it is and the same program in float32 with exact
weights go through their operations side by side, and each operation of the first also runs on the
inputs of the second: what then differs is its own error, be it rounding, overflow or a compressed
weight that it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.make.compress import stored_bytes
from pytest_ane.make.palettize.choose import Uses
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import PipelineSession, Session
from pytest_ane.mlprogram.executor.interface import to_pixels
from pytest_ane.mlprogram.executor.ops.lists import State
from pytest_ane.mlprogram.executor.prepare import uses
from pytest_ane.mlprogram.executor.session import run_step
from pytest_ane.mlprogram.records import (
    Feature,
    MLModel,
    NonMaximumSuppression,
    Operation,
    Pipeline,
)
from pytest_ane.mlprogram.weights import Weight
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget import CaseState

# Suggested compression for a weight that does harm: more bytes, the cheapest first.

_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of an index that Core ML knows."""
_GROUPS = (32, 16, 8)
_LEFT = 0.1
"""Share of the squared error that restoring takes away and that a remedy may leave."""


@dataclass(frozen=True)
class Remedy:
    """Suggested compression for a weight.

    Attributes:
        settings: as `compression.overrides` would name them.
        error: the shard's, with this weight compressed so and all others as they are.
        more: bytes that it takes beyond those of today.
    """

    settings: Settings
    error: float
    more: int


def find_remedy(
    weight: Weight,
    candidates: Sequence[tuple[int, Settings]],
    *,
    now: float,
    restored: float,
    error: Callable[[Settings], float],
) -> Remedy:
    """The first candidate that leaves a tenth of the squared error that restoring takes away.

    Args:
        weight: as it is stored.
        candidates: bytes on disk and settings; the last of them leaves it uncompressed.
        now: the shard's error as it is.
        restored: the same with this weight exact.
        error: compresses the weight and measures the shard's error.
    """
    limit = accepted(now, restored)
    for size, settings in candidates[:-1]:
        remaining = error(settings)
        if remaining * remaining <= limit:
            return Remedy(settings, remaining, size - weight.compressed_bytes)
    size, settings = candidates[-1]
    return Remedy(settings, restored, size - weight.compressed_bytes)


def accepted(now: float, restored: float) -> float:
    """The squared error of the shard up to which a remedy is accepted.

    Where the error of today is not finite, a tenth above that of the exact weight.
    """
    if not np.isfinite(now):
        return (1 + _LEFT) * restored**2
    return restored**2 + _LEFT * max(now**2 - restored**2, 0.0)


def candidates(weight: Weight, axis: int | None, *, even: bool) -> list[tuple[int, Settings]]:
    """Bytes, and settings that keep more of a weight than today's, by bytes; the last keeps all.

    Args:
        weight: as it is stored.
        axis: of the output channels; None where its uses do not agree.
        even: whether its tables have even steps, so that k-means would do better at no cost.
    """
    finer: list[Settings] = [*_palettes(weight, axis, even=even), *_integers(weight)]
    sized = [(stored_bytes(weight.shape, each, axis or 0), each) for each in finer]
    dense = stored_bytes(weight.shape, Uncompressed())
    worth = [(size, each) for size, each in sized if size < dense]
    return [*sorted(worth, key=itemgetter(0)), (dense, Uncompressed())]


def output_axis(model: MLModel, weight: str, rank: int) -> int | None:
    """The axis of a weight's output channels; None where its uses do not agree on it."""
    uses = Uses(model.main)
    return uses.channels(weight, rank) if weight in uses.ops else None


def _palettes(weight: Weight, axis: int | None, *, even: bool) -> Iterator[Palettize]:
    if len(weight.shape) < 2:
        return
    rows = None if axis is None else weight.shape[axis]
    stage = weight.stages[-1]
    scalar = stage.is_palette and stage.vector == 1 and len(weight.stages) == 1
    bits, tables = (stage.nbits, stage.count) if scalar else (0, 1)
    size = None if tables == 1 or rows is None else rows // tables
    if scalar and even:
        yield _palette(bits, size)
    finer = [s for s in _GROUPS if rows and rows % s == 0 and (size is None or s < size)]
    if scalar:
        yield from (_palette(bits, s) for s in finer)
    for more in [b for b in _BITS if b > (bits if scalar else 3)]:
        yield _palette(more, size)
        yield from (_palette(more, s) for s in finer[:1])


def _palette(bits: int, size: int | None) -> Palettize:
    if size is None:
        return Palettize(mode="kmeans", nbits=bits, granularity="per_tensor")  # type: ignore[arg-type]
    return Palettize(mode="kmeans", nbits=bits, group_size=size)  # type: ignore[arg-type]


def _integers(weight: Weight) -> Iterator[Linear]:
    """Integers of 8 bits, each channel with a scale, for what has fewer of either."""
    stage = weight.stages[-1]
    if stage.is_quantization and len(weight.shape) > 1 and (stage.nbits < 8 or stage.count == 1):
        yield Linear(dtype="int8", granularity="per_channel")


def has_even_steps(tables: Any) -> bool:
    """Whether palettes `[..., 2^n, 1]` are evenly spaced, up to the rounding of fp16."""
    values = np.asarray(tables, np.float64)
    flat = values.reshape(-1, values.shape[-2] if values.ndim > 1 else values.shape[-1])
    if not np.isfinite(flat).all():
        return False
    steps = np.diff(flat, axis=1)
    span = np.abs(flat).max(axis=1, initial=0.0)
    return bool((np.ptp(steps, axis=1) <= 2**-9 * span).all()) if steps.size else False


Arithmetics: TypeAlias = tuple[Arithmetic, Arithmetic]

_TYPED: Arithmetics = ("typed", "typed")
_SHOWS = 1e-2


@dataclass(frozen=True)
class Suspect:
    """One operation's result, in the call where it is furthest off.

    Attributes:
        op: its kind.
        name: of its result.
        own: relative difference from the float32 result, on the inputs of the latter.
        inputs: greatest relative difference of its inputs in the two runs.
        output: relative difference of its result in the two runs.
        peak: largest magnitude of the float32 result.
        weights: compressed ones that it takes.
        typed: `own` as typed, where `own` is of the ANE's arithmetic; else NaN.
    """

    op: str
    name: str
    own: float
    inputs: float
    output: float
    peak: float
    weights: tuple[str, ...] = ()
    typed: float = math.nan

    @property
    def underflows(self) -> bool:
        """Whether fp16 has no normal numbers for what it should yield, and that shows."""
        return 0 < self.peak < fp16.MIN_NORMAL and self.own > _SHOWS

    @property
    def overflows_on_ane(self) -> bool:
        """Whether the ANE's arithmetic makes it infinite, and the program's types do not."""
        return not math.isfinite(self.own) and math.isfinite(self.typed)

    @property
    def overflows(self) -> bool:
        """Whether fp16 cannot hold what it should yield."""
        return self.peak > fp16.MAX and not math.isfinite(self.own)


def suspect_operations(
    now: Session,
    ideal: Session,
    cases: Sequence[Case],
    weights: Mapping[str, str],
    typed: Session | None = None,
) -> list[Suspect]:
    """All operations whose result is floating, those that do most by themselves first.

    Args:
        now: the program as it is.
        ideal: the same in float32, with exact weights.
        cases: inputs; for a program with states only those of the first case.
        weights: names of compressed weights by the values that hold them.
        typed: the program computed as its types say, where `now` is not.
    """
    worst: dict[str, Suspect] = {}
    for calls, states in _rounds(now, ideal, cases):
        for suspect in _walk(now, ideal, calls, states, weights, typed):
            before = worst.get(suspect.name)
            if before is None or rank(suspect.own) > rank(before.own):
                worst[suspect.name] = suspect
    # A sort is stable: of operations that are equally off the first in the program comes first.
    return sorted(worst.values(), key=lambda s: -rank(s.own))


def rank(relative: float) -> float:
    """A sort key: NaN and infinity above everything finite."""
    return relative if math.isfinite(relative) else math.inf


def _rounds(now: Session, ideal: Session, cases: Sequence[Case]) -> Iterator[tuple[Any, Any]]:
    """Inputs that are run together, with both programs' states."""
    if not now.model.states:
        yield [call for case in cases for call in case.calls], (None, None)
        return
    both = [CaseState(CpuRunner(session), cases[0]) for session in (now, ideal)]
    for turn, call in enumerate(cases[0].calls):
        first, second = (states.before(turn) for states in both)
        yield [call], (first, second)


def _walk(
    now: Session,
    ideal: Session,
    calls: Sequence[Mapping[str, Any]],
    states: tuple[Any, Any],
    weights: Mapping[str, str],
    typed: Session | None,
) -> Iterator[Suspect]:
    inputs = [now.known(call) for call in calls]
    first = [now.table(each, states[0]) for each in inputs]
    second = [ideal.table(each, states[1]) for each in inputs]
    mixed = [
        [other if isinstance(other, State) else value for value, other in zip(a, b, strict=True)]
        for a, b in zip(first, second, strict=True)
    ]
    by_slot = {now.slots[o.name]: op for op in now.model.main.block.operations
               for o in op.outputs if o.name in now.slots}  # fmt: skip
    names = {slot: name for name, slot in now.slots.items()}
    run: dict[str, float] = {}
    for index, step in enumerate(now.block.steps):
        third = [list(table) for table in mixed] if typed is not None else []
        if typed is not None:
            run_step(typed, index, third)
        run_step(now, index, mixed)
        run_step(now, index, first)
        own = {slot: [table[slot] for table in mixed] for slot, _ in step.outputs}
        run_step(ideal, index, second)
        for slot, _ in step.outputs:
            theirs = [table[slot] for table in second]
            op, name = by_slot[slot], names[slot]
            for table, value in zip(mixed, theirs, strict=True):
                table[slot] = value
            if not all(isinstance(x, np.ndarray) and x.dtype.kind == "f" for x in theirs):
                continue
            both = _worst(op, name, [table[slot] for table in first], theirs)
            run[name] = both.relative
            yield Suspect(
                op=op.op,
                name=name,
                own=_worst(op, name, own[slot], theirs).relative,
                inputs=max((run.get(n, 0.0) for n in uses(op)), key=rank, default=0.0),
                output=both.relative,
                peak=max(float(np.abs(x).max(initial=0.0)) for x in theirs),
                weights=tuple(weights[n] for n in dict.fromkeys(uses(op)) if n in weights),
                typed=_worst(op, name, [table[slot] for table in third], theirs).relative
                if third
                else math.nan,
            )


def _worst(op: Operation, name: str, a: Sequence[Any], b: Sequence[Any]) -> OpDifference:
    differences = [op_difference(op.op, name, np.asarray(x), y) for x, y in zip(a, b, strict=True)]
    return max(differences, key=lambda d: rank(d.relative))


@dataclass(frozen=True)
class OpDifference:
    """How far an operation's result in one package is from that of the same name in another.

    Attributes:
        op: kind of the operation, in the first package.
        name: of its result.
        relative: |a - b| / |b| in Euclidean norms; infinite where the shapes differ, NaN where a
            value is not finite on one side only.
        largest: greatest absolute difference.
        note: why nothing could be compared, if so.
    """

    op: str
    name: str
    relative: float
    largest: float
    note: str = ""

    def beyond(self, tolerance: float) -> bool:
        """Whether it exceeds a relative tolerance; undefined counts as beyond."""
        return not self.relative <= tolerance


@dataclass(frozen=True)
class ProgramDiff:
    """Differences of all results that two packages share, in the first one's order.

    Attributes:
        only_first, only_second: results that only one of the packages computes.
        rules: by which rules of the ANE either ran; None for one that ran as typed.
    """

    differences: tuple[OpDifference, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    rules: tuple[RuleShares | None, RuleShares | None] = (None, None)

    def first_beyond(self, tolerance: float) -> OpDifference | None:
        """The first operation whose result differs by more than a relative tolerance."""
        return next((d for d in self.differences if d.beyond(tolerance)), None)

    def within(self, part: str) -> ProgramDiff:
        """The same with names below a part's of a pipeline."""
        return ProgramDiff(
            tuple(replace(d, name=f"{part}/{d.name}") for d in self.differences),
            tuple(f"{part}/{name}" for name in self.only_first),
            tuple(f"{part}/{name}" for name in self.only_second),
            self.rules,
        )


def diff_programs(
    a: MLModel, b: MLModel, inputs: Arrays, arithmetics: Arithmetics = _TYPED
) -> ProgramDiff:
    """Run both on the same inputs and compare results of the same name.

    Args:
        a: the first.
        b: the second.
        inputs: of both.
        arithmetics: in which the first and the second compute.

    Raises:
        ExecutionError: one of them cannot be run on these inputs, or they share no name.
    """
    first, second = (Session(m, arithmetic=how) for m, how in zip((a, b), arithmetics, strict=True))
    kinds = {out.name: op.op for op in a.main.block.operations for out in op.outputs}
    theirs = {_plain(name): name for name in second.computed}
    common = {name: theirs[_plain(name)] for name in first.computed if _plain(name) in theirs}
    if not common or not set(a.main.block.outputs) & set(common):
        raise ExecutionError(
            f"{a.path} and {b.path} have no output of the same name, so there is little to "
            "compare; convert both from the same module, with the same outputs."
        )
    x, y = _run(first, inputs, list(common)), _run(second, inputs, list(common.values()))
    return ProgramDiff(
        tuple(op_difference(kinds[n], n, x[n], y[other]) for n, other in common.items()),
        tuple(n for n in first.computed if n not in common),
        tuple(n for n in second.computed if n not in set(common.values())),
        (first.rule_shares, second.rule_shares),
    )


def diff_pipelines(
    a: Pipeline, b: Pipeline, inputs: Arrays, arithmetics: Arithmetics = _TYPED
) -> ProgramDiff:
    """Compare two pipelines part by part, each part of both on what enters it in the first.

    Arguments are those of `diff_programs`.

    Results are named `PART/NAME`. A suppression is one operation, named as its part, whose settings
    are compared.

    Raises:
        ExecutionError: their parts are of other kinds, or one cannot be run on these inputs.
    """
    kinds = [[type(part) for part in pipeline.parts] for pipeline in (a, b)]
    if kinds[0] != kinds[1]:
        raise ExecutionError(
            f"{a.path} and {b.path} are pipelines of other parts, so there is little to compare."
        )
    names = [f.name for part in a.parts for f in part.outputs]
    values = {
        **inputs,
        **PipelineSession(a, arithmetic=arithmetics[0]).predict(inputs, outputs=names),
    }
    diffs = []
    for name, first, second in zip(a.names, a.parts, b.parts, strict=True):
        if isinstance(first, MLModel) and isinstance(second, MLModel):
            entering = [f for f in first.inputs if f.name in values]
            given = {f.name: _entering(f, values[f.name]) for f in entering}
            diffs.append(diff_programs(first, second, given, arithmetics).within(name))
        elif not isinstance(first, MLModel) and not isinstance(second, MLModel):
            diffs.append(ProgramDiff((_suppressions(name, first, second),), (), ()))
    return ProgramDiff(
        tuple(chain.from_iterable(diff.differences for diff in diffs)),
        tuple(chain.from_iterable(diff.only_first for diff in diffs)),
        tuple(chain.from_iterable(diff.only_second for diff in diffs)),
        (_all_rules(diff.rules[0] for diff in diffs), _all_rules(diff.rules[1] for diff in diffs)),
    )


def _all_rules(parts: Iterable[RuleShares | None]) -> RuleShares | None:
    shares = [part for part in parts if part is not None]
    return sum(shares, RuleShares()) if shares else None


def _entering(feature: Feature, value: Any) -> Any:
    """A part's result as the next part takes it; what enters the whole is so already."""
    tensor = feature.kind == "image" and getattr(value, "ndim", 0) == 4
    return to_pixels(feature, value) if tensor else value


def _suppressions(name: str, a: NonMaximumSuppression, b: NonMaximumSuppression) -> OpDifference:
    changed = [
        f"{key} {value} in place of {b.settings[key]}"
        for key, value in a.settings.items()
        if value != b.settings[key]
    ]
    gap = float("inf") if changed else 0.0
    return OpDifference("nonMaximumSuppression", name, gap, gap, ", ".join(changed))


def _plain(name: str) -> str:
    """A result's name without what conversion to fp16 adds to it."""
    return name.removesuffix("_cast_fp16")


def _run(session: Session, inputs: Arrays, names: list[str]) -> Arrays:
    state = session.make_state() if session.model.states else None
    return session.predict(inputs, state, outputs=names)


def op_difference(op: str, name: str, a: Array, b: Array) -> OpDifference:
    """How far a result `a` is from `b`, of any shape, in float64; equal infinities are no gap."""
    if a.shape != b.shape:
        note = f"shapes {list(a.shape)} and {list(b.shape)}"
        return OpDifference(op, name, float("inf"), float("inf"), note)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.where(same, 0.0, x - y)
    size = float(np.linalg.norm(np.where(np.isfinite(y), y, 0.0)))
    off = float(np.linalg.norm(gap))
    relative = 0.0 if off == 0 else off / size if size else float("inf")
    largest = float(np.abs(gap).max(initial=0.0))
    return OpDifference(op, name, float("nan") if np.isnan(off) else relative, largest)
