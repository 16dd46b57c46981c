"""Which weights and which operations a shard's error comes from.

Weights are tested in two ways: one exact while all others are as compressed, and one compressed
while all others are exact. Operations are tested on exact inputs: the program as it is and the same
program in float32 with exact weights go through their operations side by side, and each operation
of the first also runs on the inputs of the second. What then differs is its own error, be it
rounding, overflow or a compressed weight that it takes.

The CPU executor runs all of it: it explains compression and arithmetic, not a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.gates.hazards import findings as find_hazards
from pytest_ane.gates.hazards import measure as measure_hazards
from pytest_ane.gates.verdict import Finding
from pytest_ane.make.compress import compress_weight, stored_bytes
from pytest_ane.make.palettize.choose import Uses
from pytest_ane.manifest import Linear, Palettize, Settings, Uncompressed
from pytest_ane.manifest.policy import HazardsPolicy
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Arrays
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.ops.lists import State
from pytest_ane.mlprogram.executor.prepare import dense, uses
from pytest_ane.mlprogram.executor.session import Replay, run_step
from pytest_ane.mlprogram.pairing import Restorer, WeightPair
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import Weight
from pytest_ane.probes.cases import Case, CaseState, Rows
from pytest_ane.probes.error_budget import LARGE, run_cases
from pytest_ane.probes.overflow import first_overflow
from pytest_ane.tools.diff import op_difference, rank

_SHOWS = 1e-2
CASES = 4
"""Probes that are run: those of the greatest error."""
WORST = 5
"""Weights whose remedies are searched for."""
_WORTH_A_REMEDY = 0.01
"""Share of the squared error from which a weight gets a remedy."""


@dataclass(frozen=True)
class Culprit:
    """What one compressed weight does to the shard's output.

    Attributes:
        restored: the shard's error with this weight exact and all others as they are.
        alone: the error that this weight makes, all others exact: against the output with every
            weight exact.
        share: of the squared error, what goes away when it is restored; negative where errors
            cancel one another.
        remedy: None where it is not worth it, or the weight is uncompressed but differs.
    """

    weight: Weight
    restored: float
    alone: float
    share: float
    remedy: Remedy | None = None


@dataclass(frozen=True)
class Blame:
    """Where a shard's error comes from.

    Every error is a relative Euclidean norm: the root of the mean, over positions, of
    |y - reference|^2 / |reference|^2; with `contribution`, of |reference - residual|^2 below.

    Attributes:
        probes: those that were run, the worst first, out of `of`.
        contribution: whether errors are relative to what the shard adds to its residual path.
        error: of the shard as it is; infinite where a value is not finite.
        exact: the same with every compressed weight exact; NaN where none can be restored.
        algebra: the same in float32, where nothing but another function is left; NaN where the
            reference is the program itself.
        typed: of the shard as it is, computed as its types say; NaN where `error` is that.
        rules: by which rules `error` was computed in the ANE's arithmetic; None for as typed.
        overflow: what made the first NaN or infinity, by `first_overflow`; empty without any.
        hazards: of the ANE's arithmetic that the same probes met, those that fail first.
        weights: compressed ones, the worst first.
        operations: the worst first.
        absent: compressed weights without a counterpart in the uncompressed package.
        without: why no weight was restored; empty where some were.
    """

    probes: tuple[str, ...]
    of: int
    contribution: bool
    error: float
    exact: float
    weights: tuple[Culprit, ...]
    operations: tuple[Suspect, ...]
    absent: tuple[str, ...] = ()
    without: str = ""
    algebra: float = math.nan
    typed: float = math.nan
    rules: RuleShares | None = None
    hazards: tuple[Finding, ...] = ()
    overflow: str = ""

    @property
    def cause(self) -> Literal["engine", "function", "fp16", "compression", ""]:
        """Which of the four makes most of the error; empty where that is not known.

        It is the ANE's arithmetic where less than half is left as typed. Exact weights that leave
        more than half of it acquit compression, and float32 that leaves more than half of that
        acquits fp16.
        """
        if not math.isnan(self.typed) and not _leaves_most(self.typed, self.error):
            return "engine"
        if math.isnan(self.exact) and self.absent:
            return ""
        exact = self.error if math.isnan(self.exact) else self.exact
        if not _leaves_most(exact, self.error):
            return "compression"
        if math.isnan(self.algebra):
            return ""
        return "function" if _leaves_most(self.algebra, exact) else "fp16"


def _leaves_most(left: float, error: float) -> bool:
    """Whether more than half of an error is left; of an infinite one only infinity is."""
    return 2 * left > error if math.isfinite(error) else not math.isfinite(left)


def blame(
    model: MLModel,
    original: MLModel | None,
    cases: Sequence[Case],
    *,
    without: str = "",
    most: int = CASES,
    arithmetic: Arithmetic = "typed",
) -> Blame:
    """Find the weights and operations that a shard's error comes from, on its worst cases.

    `original` is the same program uncompressed; None where there is none, as the sentence `without`
    says. Where cases have no rows of a reference, the program itself in float32 with exact weights
    is it. `most` of them are run, computed in `arithmetic` with exact weights, too. `AneError`
    where there is no case, or one of the programs cannot be read or run.
    """
    if not cases:
        raise ExecutionError(f"{model.path}: there is no probe to blame anything on.")
    restorer = Restorer(model, original, arithmetic)
    now = restorer.session()
    typed = None if arithmetic == "typed" else restorer.session(arithmetic="typed")
    ideal = restorer.session(restorer.names, precision="float32")
    itself = not all(case.expected for case in cases)
    if itself:
        pairs = zip(cases, _run(ideal, cases), strict=True)
        cases = [c if c.expected else replace(c, expected=rows) for c, rows in pairs]
    errors = [_error([rows], [case]) for rows, case in zip(_run(now, cases), cases, strict=True)]
    order = sorted(range(len(cases)), key=lambda i: -errors[i])[:most]
    chosen = [cases[i] for i in order]
    rules = now.rule_shares  # Of all cases; those below are counted on.
    variants = _Variants(restorer, now, chosen)
    weights = tuple(variants.culprits())
    met = None if typed is None else measure_hazards(CpuRunner(now), chosen, {})
    if not without and not restorer.pairs:
        without = (
            f"None of its {len(restorer.absent)} compressed weights has a counterpart that "
            "an operation of the uncompressed package takes in its place."
            if restorer.absent
            else "It has no compressed weights, and none differ from those of the uncompressed "
            "package."
        )
    return Blame(
        probes=tuple(case.name for case in chosen),
        of=len(cases),
        contribution=any(case.residual for case in chosen),
        error=variants.error,
        exact=variants.exact if weights else math.nan,
        weights=weights,
        operations=tuple(suspect_operations(now, ideal, chosen, restorer.values, typed)),
        absent=restorer.absent,
        without=without,
        algebra=math.nan if itself else _error(_run(ideal, chosen), chosen),
        typed=math.nan if typed is None else _error(_run(typed, chosen), chosen),
        rules=rules,
        hazards=tuple(find_hazards(met, HazardsPolicy())) if met else (),
        overflow="" if variants.error <= LARGE else first_overflow(model, chosen),
    )


def share_gone(now: float, left: float) -> float:
    """The share of a squared error that is gone where another is left, up to 1.

    Of independent errors the shares add up to 1. Of an error that is not finite, all is gone where
    what is left is finite, else nothing.
    """
    if not math.isfinite(now):
        return 1.0 if math.isfinite(left) else 0.0
    if not now:
        return 0.0 if not left else -math.inf
    ratio = left / now
    return 1 - ratio * ratio


class _Variants:
    """Variants of one artifact on the same cases."""

    def __init__(self, restorer: Restorer, now: Session, cases: Sequence[Case]) -> None:
        self._restorer, self._cases = restorer, cases
        self._now = _Runs(now, cases)
        self._ideal = _Runs(restorer.session(restorer.names), cases)
        self.error = _error(self._now.rows, cases)
        self.exact = _error(self._ideal.rows, cases)

    def culprits(self) -> Iterator[Culprit]:
        """All weights, the worst first, with remedies for the first ones."""
        found = [(self._culprit(pair), pair) for pair in self._restorer.pairs]
        found.sort(key=lambda each: (each[0].restored, -each[0].alone))
        # No weight mends what exact weights leave.
        mends = 0 if _leaves_most(self.exact, self.error) else WORST
        for place, (culprit, pair) in enumerate(found):
            worth = place < mends and culprit.share >= _WORTH_A_REMEDY and pair.weight.stages
            remedy = self._remedy(pair, culprit.restored) if worth else None
            yield replace(culprit, remedy=remedy)

    def _culprit(self, pair: WeightPair) -> Culprit:
        others = {*self._restorer.names} - {pair.name}
        restored = self._now.variant(self._restorer.session((pair.name,)), pair)
        alone = self._ideal.variant(self._restorer.session(others), pair)
        left = _error(restored, self._cases)
        own = _error(alone, self._cases, self._ideal.rows)
        return Culprit(pair.weight, left, own, share_gone(self.error, left))

    def _remedy(self, pair: WeightPair, restored: float) -> Remedy:
        taken, name = Uses(self._restorer.model.main), pair.operation.name
        axis = taken.channels(name, len(pair.weight.shape)) if name in taken.ops else None
        exact = np.asarray(dense(pair.exact), np.float32)

        def error(settings: Settings) -> float:
            values = compress_weight(exact, settings, axis=axis or 0)
            session = self._restorer.session(others={pair.name: values})
            return _error(self._now.variant(session, pair), self._cases)

        offered = candidates(pair.weight, axis)
        return find_remedy(pair.weight, offered, now=self.error, restored=restored, error=error)


class _Runs:
    """One program's rows by case; with states every variant runs whole, else it repeats a part."""

    def __init__(self, session: Session, cases: Sequence[Case]) -> None:
        self._cases, self._replay = cases, None
        if session.model.states:
            self.rows = _run(session, cases)
        else:
            calls = [session.known(call) for case in cases for call in case.calls]
            self._replay = Replay(session, calls)
            self.rows = _joined(cases, self._replay.outputs())

    def variant(self, session: Session, pair: WeightPair) -> list[Rows]:
        """The rows of a session that differs in one weight."""
        if self._replay is None:
            return _run(session, self._cases)
        return _joined(self._cases, self._replay.variant(session, [pair.operation.name]))


def _run(session: Session, cases: Sequence[Case]) -> list[Rows]:
    return [run.rows for run in run_cases(CpuRunner(session), cases)]


def _joined(cases: Sequence[Case], outputs: Sequence[Arrays]) -> list[Rows]:
    rest = iter(outputs)
    return [case.joined([case.rows(next(rest)) for _ in case.calls]) for case in cases]


def _error(
    actual: Sequence[Rows], cases: Sequence[Case], against: Sequence[Rows] | None = None
) -> float:
    """The relative error over all positions; `against` takes the place of the references.

    A position where the reference is zero counts 0 where the output is zero too, else 1; one where
    a value is not finite is infinite.
    """
    squares = [np.zeros(0)]
    for i, (rows, case) in enumerate(zip(actual, cases, strict=True)):
        for name, expected in case.expected.items():
            if name not in rows or rows[name].shape != expected.shape:
                raise ExecutionError(
                    f"{case.name}: the reference gives {name} {list(expected.shape)}, which the "
                    "artifact does not."
                )
            right = expected if against is None else against[i][name]
            signal = expected - case.residual[name] if name in case.residual else expected
            y, target, size = map(case.compared, (rows[name], right, signal))
            with np.errstate(all="ignore"):
                off = np.square(y.astype(np.float64) - target).sum(axis=1)
                norm = np.square(size.astype(np.float64)).sum(axis=1)
                share = np.where(norm > 0, off / norm, (off > 0).astype(np.float64))
            finite = np.isfinite(y).all(axis=1) & np.isfinite(share)
            squares.append(np.where(finite, share, math.inf))
    joined = np.concatenate(squares)
    return math.sqrt(joined.mean()) if joined.size else math.nan


_BITS = (1, 2, 3, 4, 6, 8)
"""Widths of an index that Core ML knows."""
_GROUPS = (32, 16, 8)
_LEFT = 0.1
"""Share of the squared error that restoring takes away and that a remedy may leave."""


@dataclass(frozen=True)
class Remedy:
    """Suggested compression for a weight, as `compression.overrides` would name it.

    `error` is the shard's with all others as they are, `more` the bytes beyond those of today.
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

    Of an error that is not finite, one that leaves a tenth more than the exact weight. Candidates
    are bytes on disk and settings, of which the last leave it uncompressed; `now` is the shard's
    error as it is, `restored` that with this weight exact, `error` measures it with others.
    """
    gone = now**2 - restored**2 if np.isfinite(now) else restored**2
    limit = restored**2 + _LEFT * max(gone, 0.0)
    *finer, (dense, uncompressed) = candidates
    for size, settings in finer:
        left = error(settings)
        if left * left <= limit:
            return Remedy(settings, left, size - weight.compressed_bytes)
    return Remedy(uncompressed, restored, dense - weight.compressed_bytes)


def candidates(weight: Weight, axis: int | None) -> list[tuple[int, Settings]]:
    """Bytes, and settings that may keep more than today's, by bytes; the last keeps all.

    Palettes by k-means of today's size come first: today's may have even steps. `axis` is that of
    the output channels; None where the weight's uses do not agree.
    """
    finer: list[Settings] = [*_palettes(weight, axis)]
    stage = weight.stages[-1]
    # Integers of 8 bits, each channel with a scale, for what has fewer of either.
    if stage.is_quantization and len(weight.shape) > 1 and (stage.nbits < 8 or stage.count == 1):
        finer.append(Linear(dtype="int8", granularity="per_channel"))
    sized = [(stored_bytes(weight.shape, each, axis or 0), each) for each in finer]
    dense = stored_bytes(weight.shape, Uncompressed())
    worth = [(size, each) for size, each in sized if size < dense]
    return [*sorted(worth, key=itemgetter(0)), (dense, Uncompressed())]


def _palettes(weight: Weight, axis: int | None) -> Iterator[Palettize]:
    if len(weight.shape) < 2:
        return
    rows = None if axis is None else weight.shape[axis]
    stage = weight.stages[-1]
    scalar = stage.is_palette and stage.vector == 1 and len(weight.stages) == 1
    bits, tables = (stage.nbits, stage.count) if scalar else (3, 1)
    size = None if tables == 1 or rows is None else rows // tables
    finer = [s for s in _GROUPS if rows and rows % s == 0 and (size is None or s < size)]
    if scalar:
        yield from (_palette(bits, s) for s in (size, *finer))
    for more in [b for b in _BITS if b > bits]:
        yield from (_palette(more, s) for s in (size, *finer[:1]))


def _palette(bits: Any, size: int | None) -> Palettize:
    if size is None:
        return Palettize(mode="kmeans", nbits=bits, granularity="per_tensor")
    return Palettize(mode="kmeans", nbits=bits, group_size=size)


@dataclass(frozen=True)
class Suspect:
    """One operation's result, in the call where it is furthest off.

    Attributes:
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
    def is_off(self) -> bool:
        """Whether it makes any error by itself."""
        return not self.own <= 0

    @property
    def note(self) -> str:
        """Compressed weights that it takes, and what fp16 or the ANE cannot hold."""
        notes = [f"takes {name}" for name in self.weights]
        finite = math.isfinite(self.own)
        if self.peak > fp16.MAX and not finite:
            notes.append(f"overflows fp16: {self.peak:,.0f} in float32")
        if not finite and math.isfinite(self.typed):
            notes.append(f"infinite on the ANE: {self.peak:,.0f} in float32")
        if 0 < self.peak < fp16.MIN_NORMAL and self.own > _SHOWS:
            notes.append(f"underflows fp16: {self.peak:.3g} at most")
        return ", ".join(notes)


def suspect_operations(
    now: Session,
    ideal: Session,
    cases: Sequence[Case],
    weights: Mapping[str, str],
    typed: Session | None = None,
) -> list[Suspect]:
    """All operations whose result is floating, those that do most by themselves first.

    `ideal` is the program `now` in float32 with exact weights, `typed` the program computed as its
    types say, where `now` is not; `weights` are names by the values that hold them. Of a program
    with states the first case alone is run.
    """
    rounds: Iterable[tuple[Sequence[Arrays], tuple[Any, ...]]]
    if now.model.states:
        both = [CaseState(CpuRunner(session), cases[0]) for session in (now, ideal)]
        calls = enumerate(cases[0].calls)
        rounds = (([call], tuple(states.before(turn) for states in both)) for turn, call in calls)
    else:
        rounds = [([call for case in cases for call in case.calls], (None, None))]
    worst: dict[str, Suspect] = {}
    for inputs, states in rounds:
        first = [now.table(now.known(each), states[0]) for each in inputs]
        second = [ideal.table(now.known(each), states[1]) for each in inputs]
        for suspect in _walk(now, ideal, first, second, weights, typed):
            before = worst.setdefault(suspect.name, suspect)
            if rank(suspect.own) > rank(before.own):
                worst[suspect.name] = suspect
    # A sort is stable: of operations that are equally off the first in the program comes first.
    return sorted(worst.values(), key=lambda s: -rank(s.own))


def _walk(
    now: Session,
    ideal: Session,
    first: Sequence[Any],
    second: Sequence[Any],
    weights: Mapping[str, str],
    typed: Session | None,
) -> Iterator[Suspect]:
    """Run both step by step on their tables of values, and each step of `now` on both."""
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
            run[name] = _furthest([table[slot] for table in first], theirs)
            yield Suspect(
                op=op.op,
                name=name,
                own=_furthest(own[slot], theirs),
                inputs=max((run.get(n, 0.0) for n in uses(op)), key=rank, default=0.0),
                output=run[name],
                peak=max(float(np.abs(x).max(initial=0.0)) for x in theirs),
                weights=tuple(weights[n] for n in dict.fromkeys(uses(op)) if n in weights),
                typed=_furthest([table[slot] for table in third], theirs) if third else math.nan,
            )


def _furthest(a: Sequence[Any], b: Sequence[Any]) -> float:
    pairs = zip(a, b, strict=True)
    return max((op_difference("", "", np.asarray(x), y).relative for x, y in pairs), key=rank)
