"""Which weights and which operations a shard's error comes from.

Weights are tested in two ways: one exact while all others are as compressed, and one compressed
while all others are exact. Operations are tested on exact inputs. All of it is run by the CPU
executor, whatever runs the artifact in production: it explains compression and arithmetic, not a
device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pytest_ane.backends.cpu import CpuRunner
from pytest_ane.gates.hazards import findings as find_hazards
from pytest_ane.gates.hazards import measure as measure_hazards
from pytest_ane.gates.verdict import Finding
from pytest_ane.make.compress import compress_weight
from pytest_ane.make.distortion import typeless
from pytest_ane.manifest import Settings
from pytest_ane.manifest.policy import HazardsPolicy
from pytest_ane.mlprogram.arithmetic import Arithmetic, RuleShares
from pytest_ane.mlprogram.arrays import Array, Arrays, DoubleArray, FloatArray
from pytest_ane.mlprogram.blob import load
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.executor.folding import dense
from pytest_ane.mlprogram.executor.session import Replay
from pytest_ane.mlprogram.executor.weights import StreamedWeight
from pytest_ane.mlprogram.records import MLModel, Operation
from pytest_ane.mlprogram.weights import (
    ProgramWeight,
    Weight,
    constant_name,
    constants_of,
    decompress,
    expansion,
    find_weights,
    plain_name,
)
from pytest_ane.probes.cases import Case, Rows
from pytest_ane.probes.error_budget import CaseState
from pytest_ane.tools._operations import (
    Remedy,
    Suspect,
    candidates,
    find_remedy,
    has_even_steps,
    output_axis,
    suspect_operations,
)

# An artifact's program with some weights as its uncompressed form has them.
#
# Programs differ in the weights that are replaced and share all else. Small shards' weights are
# held decoded; those of large ones are decoded from their files, rows at a time, in every run.

_HELD = 512 << 20
"""Bytes of decoded weights, of both packages together, up to which they are held."""


_ROUNDING = 1e-6
"""Share of a weight's sum of squares: rounding to fp16 makes 6e-8 at most, 2^-24."""


@dataclass(frozen=True, eq=False)
class WeightPair:
    """A weight in the artifact and in its uncompressed form.

    Attributes:
        weight: as the artifact stores it.
        operation: yields it.
        stored, exact: its values in float32, as arrays or to be decoded by rows; `exact` is None
            where the uncompressed form has no weight of this name and shape, or the same one.
        tables: the values of its palettes `[..., 2^n, v]`; None for no palettes, or computed ones.
    """

    weight: Weight
    operation: Operation
    stored: Any
    exact: Any
    tables: Any = None

    @property
    def name(self) -> str:
        """The weight's name before compression."""
        return self.weight.name


class Restorer:
    """Sessions of one artifact in which chosen weights are exact.

    Args:
        model: the artifact.
        original: the same program uncompressed; None where there is none.
        arithmetic: of the sessions that compute as typed, not in float32.

    Attributes:
        pairs: the weights that differ from their counterparts, in program order: compressed ones,
            and others whose values are not the same.
        absent: names of compressed ones that have no counterpart.
        values: names of all of these by the program's values that hold them.

    Raises:
        ProgramError: a weight is not where its package says.
        ExecutionError: a weight cannot be decoded.
    """

    def __init__(
        self, model: MLModel, original: MLModel | None, arithmetic: Arithmetic = "typed"
    ) -> None:
        self.model, self._arithmetic = model, arithmetic
        pairs = list(_pairs(model, original))
        self.pairs = tuple(pair for pair in pairs if pair.exact is not None)
        self.absent = tuple(p.name for p in pairs if p.weight.stages and p.exact is None)
        names = {*self.absent, *self.names}
        self.values = {pair.operation.name: pair.name for pair in pairs if pair.name in names}
        self._stored: dict[Operation, Any] = {pair.operation: pair.stored for pair in pairs}
        self._skipped = _intermediate(model, self._stored)

    def session(
        self,
        exact: Collection[str] = (),
        *,
        others: Mapping[str, Array] | None = None,
        precision: Precision = "as-typed",
        arithmetic: Arithmetic | None = None,
    ) -> Session:
        """A session of the artifact's program with some of its weights replaced.

        Args:
            exact: names of the weights that are those of the uncompressed form.
            others: further weights by name, in float32.
            precision: as in `Session`.
            arithmetic: in place of the restorer's, which float32 excludes.
        """
        weights = dict(self._stored)
        for pair in self.pairs:
            if pair.name in exact:
                weights[pair.operation] = pair.exact
            if others and pair.name in others:
                weights[pair.operation] = others[pair.name]
        how = arithmetic or (self._arithmetic if precision == "as-typed" else "typed")
        overrides = self._skipped | weights
        return Session(self.model, precision, 0, overrides=overrides, arithmetic=how)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the weights that can be restored."""
        return tuple(pair.name for pair in self.pairs)


def _pairs(model: MLModel, original: MLModel | None) -> Iterator[WeightPair]:
    theirs = {} if original is None else _by_name(original)
    mine = [each for each in find_weights(model) if each.function is model.main]
    counts = Counter(each.weight.name for each in mine)
    hold = 8 * sum(each.weight.elements for each in mine) <= _HELD
    for own in mine:
        weight, other = own.weight, theirs.get(_key(own))
        exact = None
        if original is not None and other is not None and _is_joined(own, other, counts):
            exact = _values(decompress(original, other), hold)
        stored = _values(decompress(model, own), hold)
        if exact is not None and not weight.stages and _agree(stored, exact):
            exact = None
        yield WeightPair(weight, own.operation, stored, exact, _tables(model, own))


def _is_joined(own: ProgramWeight, other: ProgramWeight, counts: Mapping[str, int]) -> bool:
    weight = own.weight
    return counts[weight.name] == 1 and other.weight.shape == weight.shape


def _agree(stored: Any, exact: Any) -> bool:
    """Whether two weights are the same but for rounding to fp16."""
    a, b = np.asarray(stored), np.asarray(exact)
    with np.errstate(all="ignore"):
        return bool(np.square(a - b).sum() <= _ROUNDING * np.square(b).sum())


def _tables(model: MLModel, weight: ProgramWeight) -> Any:
    table = constants_of(weight.operation, weight.producers).get("lut")
    return None if table is None else load(model, table)


def _by_name(model: MLModel) -> dict[str, ProgramWeight]:
    """Weights by name; none of those of which there are several of one name."""
    named: dict[str, list[ProgramWeight]] = {}
    for weight in find_weights(model):
        if weight.function is model.main:
            named.setdefault(_key(weight), []).append(weight)
    return {name: several[0] for name, several in named.items() if len(several) == 1}


def _key(weight: ProgramWeight) -> str:
    """A weight's own name without what conversion to fp16 adds to it."""
    return typeless(plain_name(constant_name(weight.operation)))


def _values(weight: Any, hold: bool) -> Any:
    if hold:
        return np.asarray(weight, np.float32)
    return weight if isinstance(weight, StreamedWeight) else _streamed(weight)


def _streamed(weight: Array) -> Any:
    """A weight that had to be decoded as a whole, kept in half the bytes where that loses none."""
    with np.errstate(over="ignore"):
        half = weight.astype(np.float16)
    if not weight.shape or not np.array_equal(half, weight, equal_nan=True):
        return weight

    def rows(start: int, stop: int, out: Array) -> Array:
        np.copyto(out, half[start:stop])
        return out

    return StreamedWeight(half.shape, np.float32, rows)


def _intermediate(model: MLModel, weights: Mapping[Operation, Any]) -> dict[Operation, Any]:
    """The operations that only serve to expand weights: nobody needs what they yield."""
    mine = [each for each in find_weights(model) if each.operation in weights]
    ops = {op for each in mine for op in expansion(each, model.path) if op not in weights}
    return {op: None for op in ops if op.op.startswith("constexpr_")}


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
        weight: as it is stored.
        restored: the shard's error with this weight exact and all others as they are.
        alone: the error that this weight makes, all others exact: against the output with every
            weight exact.
        share: of the squared error, what goes away when it is restored; negative where errors
            cancel one another.
        share_alone: of the sum of the squares of `alone`, its own.
        remedy: None where it is not worth it, or the weight is uncompressed but differs.
    """

    weight: Weight
    restored: float
    alone: float
    share: float
    share_alone: float
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

    Args:
        model: the artifact.
        original: the same program uncompressed; None where there is none, as `without` says.
        cases: with the reference's rows; without them, the program itself in float32 with exact
            weights is the reference.
        without: why there is no `original`, a sentence.
        most: so many cases, those of the greatest error.
        arithmetic: how the artifact is computed, with exact weights too.

    Raises:
        ExecutionError: there is no case, or one of the programs cannot be run.
        ProgramError: a weight is not where its package says.
    """
    if not cases:
        raise ExecutionError(f"{model.path}: there is no probe to blame anything on.")
    restorer = Restorer(model, original, arithmetic)
    now = restorer.session()
    typed = None if arithmetic == "typed" else restorer.session(arithmetic="typed")
    ideal = restorer.session(restorer.names, precision="float32")
    itself = not all(case.expected for case in cases)
    cases = _with_references(cases, ideal)
    errors = [_error([rows], [case]) for rows, case in zip(_run(now, cases), cases, strict=True)]
    order = sorted(range(len(cases)), key=lambda i: -errors[i])[:most]
    chosen = [cases[i] for i in order]
    rules = now.rule_shares
    variants = _Variants(restorer, now, chosen)
    weights = tuple(variants.culprits())
    if not without and not restorer.pairs:
        without = _without(restorer)
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
        hazards=() if typed is None else hazards_of(now, chosen),
    )


def hazards_of(session: Session, cases: Sequence[Case]) -> tuple[Finding, ...]:
    """Hazards of the ANE's arithmetic that a session meets, by the default policy.

    Args:
        session: with arithmetic `ane`; it is run once more.
        cases: the probes.
    """
    measurement = measure_hazards(CpuRunner(session), cases, {})
    return tuple(find_hazards(measurement, HazardsPolicy()))


def shares(
    now: float, restored: Sequence[float], alone: Sequence[float]
) -> list[tuple[float, float]]:
    """`(share, share_alone)` of each weight, as in `Culprit`.

    Of independent errors the squares add up, and so do the shares, to 1. Where the shard's error is
    not finite, a share is 1 for a weight whose restoring makes it finite, else 0; likewise those
    that alone are not finite divide the whole among them.
    """
    infinite = sum(not math.isfinite(x) for x in alone)
    largest = max((x for x in alone if math.isfinite(x)), default=0.0)
    total = sum((x / largest) ** 2 for x in alone) if largest and not infinite else 0.0

    def by_itself(x: float) -> float:
        if infinite:
            return 0.0 if math.isfinite(x) else 1 / infinite
        return (x / largest) ** 2 / total if total else 0.0

    return [(_gone(now, r), by_itself(x)) for r, x in zip(restored, alone, strict=True)]


def _gone(now: float, left: float) -> float:
    """Share of a squared error that is gone where another is left."""
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
        self._exact = self._ideal.rows()
        self.error = _error(self._now.rows(), cases)
        self.exact = _error(self._exact, cases)

    def culprits(self) -> Iterator[Culprit]:
        """All weights, the worst first, with remedies for the first ones."""
        pairs = self._restorer.pairs
        left = [self._restored(pair) for pair in pairs]
        alone = [self._alone(pair) for pair in pairs]
        culprits = [
            Culprit(pair.weight, r, a, *both)
            for pair, r, a, both in zip(
                pairs, left, alone, shares(self.error, left, alone), strict=True
            )
        ]
        order = sorted(range(len(culprits)), key=lambda i: (left[i], -alone[i]))
        for place, i in enumerate(order):
            culprit = culprits[i]
            compressed = bool(culprit.weight.stages)
            # No weight mends what exact weights leave.
            mends = not _leaves_most(self.exact, self.error)
            if mends and compressed and place < WORST and culprit.share >= _WORTH_A_REMEDY:
                culprit = replace(culprit, remedy=self._remedy(pairs[i], culprit.restored))
            yield culprit

    def _restored(self, pair: WeightPair) -> float:
        session = self._restorer.session((pair.name,))
        return _error(self._now.variant(session, pair), self._cases)

    def _alone(self, pair: WeightPair) -> float:
        session = self._restorer.session(set(self._restorer.names) - {pair.name})
        return _error(self._ideal.variant(session, pair), self._cases, self._exact)

    def _remedy(self, pair: WeightPair, restored: float) -> Remedy:
        model, weight = self._restorer.model, pair.weight
        axis = output_axis(model, pair.operation.name, len(weight.shape))
        exact = np.asarray(dense(pair.exact), np.float32)

        def error(settings: Settings) -> float:
            values = compress_weight(exact, settings, axis=axis or 0)
            session = self._restorer.session(others={pair.name: values})
            return _error(self._now.variant(session, pair), self._cases)

        even = has_even_steps(pair.tables) if pair.tables is not None else False
        offered = candidates(weight, axis, even=even)
        return find_remedy(weight, offered, now=self.error, restored=restored, error=error)


class _Runs:
    """One program on all cases; with states every run is whole, else variants repeat a part."""

    def __init__(self, session: Session, cases: Sequence[Case]) -> None:
        self._session, self._cases = session, cases
        calls = [session.known(call) for case in cases for call in case.calls]
        self._replay = None if session.model.states else Replay(session, calls)

    def rows(self) -> list[Rows]:
        """The session's own, by case."""
        if self._replay is None:
            return _run(self._session, self._cases)
        return _joined(self._cases, self._replay.outputs())

    def variant(self, session: Session, pair: WeightPair) -> list[Rows]:
        """Those of a session that differs in one weight."""
        if self._replay is None:
            return _run(session, self._cases)
        return _joined(self._cases, self._replay.variant(session, [pair.operation.name]))


def _run(session: Session, cases: Sequence[Case]) -> list[Rows]:
    """Every case's rows; a program with states runs call by call."""
    if not session.model.states:
        calls = [session.known(call) for case in cases for call in case.calls]
        return _joined(cases, session.predict_all(calls))
    outputs: list[dict[str, Any]] = []
    for case in cases:
        states = CaseState(CpuRunner(session), case)
        outputs += [
            session.predict(session.known(call), states.before(turn))
            for turn, call in enumerate(case.calls)
        ]
    return _joined(cases, outputs)


def _joined(cases: Sequence[Case], outputs: Sequence[Arrays]) -> list[Rows]:
    """Each case's rows of all its calls."""
    rest = iter(outputs)
    joined: list[Rows] = []
    for case in cases:
        joined.append(case.joined([case.rows(next(rest)) for _ in case.calls]))
    return joined


def _with_references(cases: Sequence[Case], ideal: Session) -> list[Case]:
    """Cases that all have expected rows."""
    if all(case.expected for case in cases):
        return list(cases)
    rows = _run(ideal, cases)
    return [c if c.expected else replace(c, expected=r) for c, r in zip(cases, rows, strict=True)]


def _error(
    actual: Sequence[Rows], cases: Sequence[Case], against: Sequence[Rows] | None = None
) -> float:
    """The relative error over all positions; `against` takes the place of the references.

    A position where the reference is zero counts 0 where the output is zero too, else 1.
    """
    squares: list[DoubleArray] = []
    for i, (rows, case) in enumerate(zip(actual, cases, strict=True)):
        for name, expected in case.expected.items():
            if name not in rows or rows[name].shape != expected.shape:
                raise ExecutionError(
                    f"{case.name}: the reference gives {name} {list(expected.shape)}, which the "
                    "artifact does not."
                )
            target = expected if against is None else against[i][name]
            signal = expected - case.residual[name] if name in case.residual else expected
            squares.append(_squares(*map(case.compared, (rows[name], target, signal))))
    joined = np.concatenate(squares) if squares else np.zeros(0)
    return math.sqrt(joined.mean()) if joined.size else math.nan


def _squares(actual: FloatArray, target: FloatArray, signal: FloatArray) -> DoubleArray:
    """|actual - target|^2 / |signal|^2 by row; infinite where a value is not finite."""
    with np.errstate(all="ignore"):
        off = np.square(actual.astype(np.float64) - target).sum(axis=1)
        size = np.square(signal.astype(np.float64)).sum(axis=1)
        squares = np.where(size > 0, off / size, (off > 0).astype(np.float64))
    finite = np.isfinite(actual).all(axis=1) & np.isfinite(squares)
    return np.where(finite, squares, math.inf)


def _without(restorer: Restorer) -> str:
    if restorer.absent:
        return (
            f"None of its {len(restorer.absent)} compressed weights has a counterpart of the same "
            "name and shape in the uncompressed package."
        )
    return "It has no compressed weights, and none differ from those of the uncompressed package."
