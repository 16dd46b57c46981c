"""The error budget of a shard: what its function, fp16 and its compression each cost.

Runs of the CPU executor tell them apart, on the probes of the fidelity gate:

- *algebra*: the uncompressed program in float32 against the reference. It has to be nearly nothing,
  whatever the model: both compute one function, so what differs is another function.
- *rounding*: the uncompressed program as typed against itself in float32.
- *program*: the compressed program with the uncompressed one's weights put in, against that one,
  both in float32: of a package that somebody brought nobody else knows that they are one function.
- *compression*: the compressed program against the uncompressed one, both in float32.

An error is relative to what the shard *adds* to its residual path, position by position: the path
of a transformer is ten times what a block adds to it, and would hide everything. Less is taken for
no error than rounding the output to its type takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytest_ane.backends import Runner
from pytest_ane.backends.cpu import CpuBackend, CpuRunner
from pytest_ane.make.stored import foreign_weights, is_layer, spread
from pytest_ane.mlprogram import fp16
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.executor import Session
from pytest_ane.mlprogram.executor.dtypes import Precision
from pytest_ane.mlprogram.executor.prepare import dense
from pytest_ane.mlprogram.groups import grouped
from pytest_ane.mlprogram.metrics.tensors import along, cosine
from pytest_ane.mlprogram.model import counterpart, read_model
from pytest_ane.mlprogram.pairing import Restorer, same_form
from pytest_ane.mlprogram.records import MLModel
from pytest_ane.mlprogram.weights import ProgramWeight, decompress, find_weights
from pytest_ane.probes.cases import Case, CaseState, Rows
from pytest_ane.probes.overflow import first_overflow
from pytest_ane.probes.seeded import gaussian, generator


@dataclass(frozen=True, eq=False)
class Run:
    """What a package made of one probe: rows by output, and T of the call that each row is of.

    `alike` are by output the inputs that may be its residual path, where the case does not know it.
    """

    rows: Rows
    lengths: tuple[int, ...]
    alike: Mapping[str, Sequence[FloatArray]]


def run_cases(runner: Runner, cases: Sequence[Case]) -> Iterator[Run]:
    """Run each case's calls on a state of its own: all first calls, then all second ones."""
    states = [CaseState(runner, case) for case in cases]
    parts: list[list[Rows]] = [[] for _ in cases]
    alike: list[list[dict[str, list[FloatArray]]]] = [[] for _ in cases]
    for turn in range(max((len(case.calls) for case in cases), default=0)):
        at = [i for i, case in enumerate(cases) if turn < len(case.calls)]
        calls = [cases[i].calls[turn] for i in at]
        before = [states[i].before(turn) for i in at]
        for i, outputs in zip(at, runner.predict_all(calls, before), strict=True):
            rows = cases[i].rows(outputs)
            parts[i].append(rows)
            if cases[i].residual_unknown:
                inputs = cases[i].calls[turn].values()
                floats = [x for x in inputs if np.issubdtype(x.dtype, np.floating)]
                shapes = {n: getattr(outputs[n], "shape", None) for n in rows.keys() & outputs}
                alike[i].append({
                    n: [cases[i].rows({n: x})[n] for x in floats if x.shape == shape]
                    for n, shape in shapes.items()
                })  # fmt: skip
    for case, mine, others in zip(cases, parts, alike, strict=True):
        sizes = (max(map(len, part.values()), default=0) for part in mine)
        every = [size for size in sizes for _ in range(size)]
        lengths = every if case.kept is None else [every[i] for i in case.kept]
        paths = {
            name: [*map(np.concatenate, zip(*(call[name] for call in others), strict=True))]
            for name in (others[0] if others else ())
        }
        yield Run(case.joined(mine), tuple(lengths), paths)


def nearest(inputs: Sequence[FloatArray], expected: FloatArray) -> FloatArray | None:
    """Input with the highest |cosine| to the output; zero or non-finite inputs rank last."""

    def likeness(x: FloatArray) -> float:
        like = abs(float(cosine(x.reshape(1, -1), expected.reshape(1, -1))[0]))
        return like if like >= 0 else -1.0

    return max(inputs, key=likeness, default=None)


BUDGET_VERSION = 9
"""Raised whenever the same programs and probes give another budget: part of every cache key."""
_FLOAT32, _HALF = 2.0**-22, fp16.EPSILON
"""Of a sum's size, what rounding may take: of a few sums in float32, in fp16 of two, as a block
has that adds attention and feed-forward to its residual path."""
LARGE = 0.05
"""Rounding from which the operation that overflows is looked for."""
_NARROW = 4
"""Channels are named where a fourth of them, or fewer, have nearly all of the squared error."""
_NEARLY_ALL = 0.9
_DRAWS = 12
"""Draws of what compression may have lost."""
_GROWTH, _GROWN = 0.05, 24
"""By how much constants are grown to see what their size changes, and how many of them alone."""
_WAYS = (
    "in all",
    "at some positions",
    "in some channels",
    "in the mean of all positions",
    "along what a larger or smaller constant makes",
)
"""In which an error may be more than compression leaves."""
_NOTHING = 2e-3
"""Relative root mean square that is nothing, as of algebra."""
_ENOUGH = 32
"""Numbers from which a mean square tells something."""
_RIGHT = 1.38, 1.38, 1.42, 1.38
"""Times what draws have, that right packages stay below where compression explains little, by way.
Blocks of attention and feed-forward with normal and heavy-tailed weights, outliers and rows of
various sizes, in 3 to 8 bits by k-means and evenly, int4 and int8, per tensor, channel and block,
over 20 seeds, and 200 trunks of up to eight convolutions stayed below these four."""
_COARSE = 0.25
"""What these grow by, per unit of what compression explains: draws of coarse weights vary more."""
_DEVIATIONS, _LEAST, _SHRUNK = 4.5, 0.6, 0.5
"""How far an error may be from the draws along what a constant's size changes: times the draws'
deviation, which is at least a share of that along all constants, and as large as a gain of a share
of the worst weight's squared relative error, for rounding may shrink all values together. k-means
is not exact, either, so that two of 380 runs of the same blocks went beyond a smaller one."""


@dataclass(frozen=True)
class Error:
    """How far two runs are apart, relative to what the reference adds to the residual path.

    Attributes:
        greatest: relative L2 error of the worst position, which `probe`, `output` and `position`
            name; infinite where a value is not finite.
        rms: root of the mean square over all positions of all probes.
        gain: how many times the reference's contribution the other one is, by least squares.
        lengths, experts: `(T, greatest)` of the calls of each length, `(expert, greatest)` of the
            positions at which the reference uses each.
        least: by length, of the call that is off least.
        positions: `(position, error)` of the worst probe, of up to 512 positions.
        channels: first and last of the few channels that have nine tenths of its squared error.
        adds: whether there is a residual path that the output is added to.
    """

    greatest: float
    rms: float
    probe: str = ""
    output: str = ""
    position: int = 0
    gain: float = 1.0
    lengths: tuple[tuple[int, float], ...] = ()
    positions: tuple[tuple[int, float], ...] = ()
    channels: tuple[int, ...] = ()
    experts: tuple[tuple[int, float], ...] = ()
    adds: bool = True
    least: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.greatest < 0 or self.rms < 0:
            raise ValueError("an error is negative")


@dataclass(frozen=True)
class ErrorBudget:
    """What a shard's errors are made of; a part is None where its program is missing.

    Attributes:
        overflow: of the uncompressed program, by `first_overflow`.
        unpaired: compressed weights without a counterpart there, so that `program` is not known.
        foreign: sentences about weights that are others there, by `foreign_weights`.
        plain: its name, for people.
        loss, explained, beyond, way: without that program, the artifact's error in float32, and
            what `unexplained` says of it.
    """

    algebra: Error | None
    rounding: Error
    compression: Error | None
    overflow: str = ""
    program: Error | None = None
    unpaired: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    plain: str = ""
    loss: Error | None = None
    explained: float = 0.0
    beyond: float = 0.0
    way: str = ""


def measure_budget(
    plain: Path,
    compressed: Path | None,
    cases: Sequence[Case],
    *,
    function: str | None = None,
    against_itself: bool = False,
    own: bool = False,
    further: Callable[[], Sequence[Case]] = list,
) -> ErrorBudget:
    """The error budget of a shard on its probes, by runs of the CPU executor.

    `compressed` is None where the artifact is the uncompressed package. With `against_itself` that
    is the reference, so there is no algebra to judge. An `own` one was not compressed here, so its
    program is held to the uncompressed one; where operations are not the same, on `further` cases
    too, whose reference is the uncompressed program.
    """
    plainly = counterpart(plain, function)
    exact = _runs(plain, plainly, cases, "float32")
    typed = _runs(plain, plainly, cases, "as-typed")
    reference = _references(cases, exact)
    algebra = None if against_itself else _error(reference, exact, None, _FLOAT32)
    rounding, compression = _error(reference, typed, exact, _HALF), None
    if compressed is not None:
        runs = _runs(compressed, function, cases, "float32")
        compression = _error(reference, runs, exact, _FLOAT32)
    overflow = ""
    if rounding.greatest > LARGE:
        worst = [case for case in cases if case.name == rounding.probe]
        overflow = first_overflow(read_model(plain, function=plainly), worst[:1])
    budget = ErrorBudget(algebra, rounding, compression, overflow)
    if compressed is None or not own:
        return budget
    model, original = read_model(compressed, function=function), read_model(plain, function=plainly)
    restorer = Restorer(model, original)
    foreign = foreign_weights(restorer.pairs)
    budget = replace(budget, foreign=tuple(foreign.values()))
    if restorer.absent:
        return replace(budget, unpaired=restorer.absent)
    # A layer's weight that lost too much is damaged; a mask is part of the program.
    put = [
        pair.name
        for pair in restorer.pairs
        if pair.weight.stages and (pair.name not in foreign or is_layer(pair.weight))
    ]
    if len(put) == len(restorer.pairs) and same_form(model, original):
        return replace(budget, program=Error(0.0, 0.0))
    more = further()
    others = _runs(plain, plainly, more, "float32")
    runner = CpuRunner(restorer.session(put, precision="float32"))
    runs = [*run_cases(runner, [*cases, *more])]
    references = [*reference, *_references(more, others)]
    return replace(budget, program=_error(references, runs, [*exact, *others], _FLOAT32))


def measure_loss(package: Path, cases: Sequence[Case], function: str | None = None) -> ErrorBudget:
    """The error budget of a compressed package of which nobody knows what was compressed.

    Weights that are off at random by what the file cannot hold give other outputs: as far from
    those may the reference be for its compression. A wrong function is mostly as if some constant
    were larger or smaller, of which random draws have little, so it shows below that.
    """
    model = read_model(package, function=function)
    exact, typed = (_runs(package, function, cases, how) for how in ("float32", "as-typed"))
    reference = _references(cases, exact)
    weights = [_stored(model, w) for w in find_weights(model) if w.function is model.main]
    made = [
        _runs_of(model, ((w, w.drawn(draw)) for w in weights if w.of.weight.stages), cases)
        for draw in range(_DRAWS)
    ]
    # Where there are many, those of one shape and operation are grown together.
    few = len(weights) <= _GROWN
    alike = (
        (w.of.operation.name if few else (w.of.weight.op_types, w.of.weight.shape), w)
        for w in weights
    )
    for group in grouped(alike).values():
        grown = ((w, w.values * np.float32(1 + _GROWTH)) for w in group)
        made.append(_runs_of(model, grown, cases))
    losses: dict[str, list[Loss]] = {}
    for ref, mine, *others_ in zip(reference, exact, *made, strict=True):
        for name in _known(ref.case, mine):
            rows = (ref.case.expected, mine.rows, ref.paths, *(run.rows for run in others_))
            expected, actual, path, *runs = (
                ref.case.compared(np.asarray(each[name], np.float64)) for each in rows
            )
            parts = (np.stack(each) for each in (runs[:_DRAWS], [actual, *runs[_DRAWS:]]))
            loss = Loss(expected, actual, path, *parts)
            losses.setdefault(name, []).append(loss)
    shrunk = max((w.share for w in weights), default=0.0)
    told = [unexplained(_joined(each), shrunk) for each in losses.values()]
    beyond, way = max((each[1:] for each in told), default=(math.inf, ""))
    return ErrorBudget(
        None, _error(reference, typed, exact, _HALF), None,
        loss=_error(reference, exact, None, _FLOAT32),
        explained=max((each[0] for each in told), default=0.0),
        beyond=beyond, way=way,
    )  # fmt: skip


class _Stored(NamedTuple):
    """A weight, its values, and what compression may have lost of each: rms, and mean.

    `share` is that of all, squared and relative.
    """

    of: ProgramWeight
    values: FloatArray
    lost: FloatArray
    nearer: FloatArray
    share: float

    def drawn(self, draw: int) -> FloatArray:
        """What may have been compressed, at random."""
        noise = gaussian(generator("loss", draw, self.of.weight.name), self.values.shape)
        return np.asarray(self.values - self.nearer + self.lost * noise, np.float32)


def _stored(model: MLModel, weight: ProgramWeight) -> _Stored:
    values = np.asarray(dense(decompress(model, weight)), np.float32)
    lost, nearer = spread(weight.weight, values)
    lost_square, square = (float(np.square(x, dtype=np.float64).sum()) for x in (lost, values))
    share = min(lost_square / square, 1.0) if square else 0.0
    return _Stored(weight, values, lost, nearer, share)


def _runs_of(
    model: MLModel, others: Iterable[tuple[_Stored, FloatArray]], cases: Sequence[Case]
) -> list[Run]:
    """Runs in float32 with other values of some weights."""
    overrides = {weight.of.operation: values for weight, values in others}
    return [*run_cases(CpuRunner(Session(model, "float32", 0, overrides=overrides)), cases)]


class Loss(NamedTuple):
    """Rows `[R, C]` of a reference, of an artifact, and the residual path; `[K, R, C]` draws.

    `grown` `[J, R, C]` has the artifact's own first, and with some of its constants grown.
    """

    expected: DoubleArray
    actual: DoubleArray
    path: DoubleArray
    draws: DoubleArray
    grown: DoubleArray


def _known(case: Case, *runs: Run | None) -> list[str]:
    """Outputs of the reference that runs have too, in its shape; the gate says which they lack."""
    return [
        name
        for name, rows in case.expected.items()
        if all(getattr(r.rows.get(name), "shape", None) == rows.shape for r in runs if r)
    ]


def _joined(losses: Sequence[Loss]) -> Loss:
    """All rows of an output; those of several lengths that were not told apart in parts alike."""
    width = math.gcd(*(each.expected.shape[1] for each in losses)) or 1
    parts = (
        [x.reshape(*x.shape[:-2], -1, width) for x in each] for each in zip(*losses, strict=True)
    )
    return Loss(*(np.concatenate(each, axis=-2) for each in parts))


def unexplained(loss: Loss, shrunk: float = 0.0) -> tuple[float, float, str]:
    """What compression explains of an error, how many times more there is, and in which way.

    The first is a root mean square relative to what the reference adds. The second is the greatest
    of five ratios to what the draws have, one for each of `_WAYS`; right packages stay below 1.
    `shrunk` is the greatest squared relative error of a weight.
    """
    expected, actual, path, draws, grown = loss
    size = np.linalg.norm(expected - path, axis=1, keepdims=True)
    size = np.maximum(size, fp16.EPSILON * np.linalg.norm(expected, axis=1, keepdims=True))
    size = np.maximum(size, fp16.SMALLEST)
    with np.errstate(all="ignore"):
        error, made = (expected - actual) / size, (draws - actual) / size
        mine, squares = np.square(error), np.square(made)
        explained = math.sqrt(float(squares.mean(0).sum(1).mean()))
        means = np.square(error.mean(0, keepdims=True)), np.square(made.mean(1, keepdims=True))
        least = _NOTHING**2 / expected.shape[1]
        ratios = [
            _excess(mine.reshape(1, -1), squares.reshape(len(squares), 1, -1), least, 0),
            _excess(mine, squares, least, 0),
            _excess(mine, squares, least, 1),
            _excess(*means, least, 0),
        ]
        coarse = 1 + _COARSE * min(explained, 1.0)
        ratios = [x / right / coarse for x, right in zip(ratios, _RIGHT, strict=True)]
        changed = np.stack([actual - path, *(grown[1:] - actual) / _GROWTH]) / size
        ratios.append(_along(changed, error, made, shrunk))
    beyond, way = max(zip(ratios, _WAYS, strict=True))
    finite = all(map(math.isfinite, ratios))
    return _digits(explained), _digits(beyond) if finite else math.inf, way


def _along(changed: DoubleArray, error: DoubleArray, made: DoubleArray, shrunk: float) -> float:
    """How far an error is from the draws, along each direction `[R, C]` of what has `changed`."""
    nothing = _NOTHING * math.sqrt(len(error))
    directions = changed.reshape(len(changed), -1)
    length = np.linalg.norm(directions, axis=1)
    directions, length = directions[length > nothing], length[length > nothing]
    if not length.size:
        return 0.0
    mine, drawn = (
        each.reshape(-1, directions.shape[1]) @ directions.T / length for each in (error, made)
    )
    deviation = drawn.std(0, ddof=1) * math.sqrt(1 + 1 / len(made))
    deviation = np.maximum(deviation, _LEAST * math.sqrt(float(np.square(deviation).mean())))
    may = _DEVIATIONS * deviation + _SHRUNK * shrunk * length + nothing
    return float((np.abs(mine - drawn.mean(0)) / may).max())


def _excess(mine: DoubleArray, made: DoubleArray, least: float, axis: int) -> float:
    """The worst rows or channels of an error, by those of draws among themselves."""
    whole, count = made.sum(0), len(made)
    others = ((whole - each) / (count - 1) + least for each in made)
    usual = max(_worst(a, b, axis) for a, b in zip(made, others, strict=True))
    return _worst(mine, whole / count + least, axis) / max(1.0, usual)


def _worst(squares: DoubleArray, usual: DoubleArray, axis: int) -> float:
    """The greatest ratio of a few rows, or channels, of enough numbers to tell."""
    few = -(-_ENOUGH // squares.shape[1 - axis])
    starts = np.arange(0, squares.shape[axis], few)
    a, b = (np.add.reduceat(each.sum(1 - axis), starts) for each in (squares, usual))
    return math.sqrt(float((a / b).max()))


def total_error(cases: Sequence[Case], runs: Sequence[Run]) -> Error:
    """The error of the artifact as it ran, against the reference."""
    return _error(_references(cases, runs), runs, None, _HALF)


def difference(cases: Sequence[Case], runs: Sequence[Run], others: Sequence[Run]) -> Error:
    """How far two runs of one artifact are apart, relative to what the reference adds."""
    return _error(_references(cases, others), runs, others, _HALF)


def _runs(
    package: Path, function: str | None, cases: Sequence[Case], precision: Precision
) -> list[Run]:
    return list(run_cases(CpuBackend(precision).load(package, function), cases))


class _Reference(NamedTuple):
    """What a probe's reference says, by output: rows, and what of them is the residual path."""

    case: Case
    lengths: tuple[int, ...]
    paths: dict[str, DoubleArray]


def _references(cases: Sequence[Case], runs: Sequence[Run]) -> list[_Reference]:
    made = []
    for case, run in zip(cases, runs, strict=True):
        paths = {}
        for name, expected in case.expected.items():
            path: Any = case.residual.get(name)
            if path is None:
                x = nearest(run.alike.get(name, ()), expected)
                path = 0.0 * expected if x is None else along(expected, x)
            paths[name] = np.asarray(path, np.float64)
        made.append(_Reference(case, run.lengths, paths))
    return made


class _Rows(NamedTuple):
    """Errors of one output of one probe, row by row."""

    reference: _Reference
    output: str
    errors: DoubleArray
    difference: DoubleArray
    along: float
    square: float


def _error(
    reference: Sequence[_Reference],
    runs: Sequence[Run],
    against: Sequence[Run] | None,
    epsilon: float,
) -> Error:
    """The error of runs against others, or where there are none against the reference."""
    others = [None] * len(runs) if against is None else against
    every = [
        _rows(ref, name, mine.rows, ref.case.expected if other is None else other.rows, epsilon)
        for ref, mine, other in zip(reference, runs, others, strict=True)
        for name in _known(ref.case, mine, other)
    ]
    if not every:
        return Error(math.inf, math.inf)
    worst = max(every, key=lambda rows: float(rows.errors.max(initial=0.0)))
    row, start = int(worst.errors.argmax()) if worst.errors.size else 0, worst.reference.case.start
    joined = np.concatenate([rows.errors for rows in every])
    square = sum(rows.square for rows in every)
    sized = [(rows, [(n,) for n in rows.reference.lengths]) for rows in every]
    return Error(
        greatest=_digits(joined.max(initial=0.0)),
        rms=_digits(math.sqrt(float(np.square(joined).mean())) if joined.size else 0.0),
        probe=worst.reference.case.name,
        output=worst.output,
        position=start + row,
        gain=_digits(sum(rows.along for rows in every) / square if square else math.nan),
        lengths=_greatest(sized),
        least=_least(sized),
        positions=tuple((start + i, _digits(x)) for i, x in enumerate(worst.errors[:512].tolist())),
        channels=_channels(worst.difference),
        experts=_greatest((rows, rows.reference.case.routed) for rows in every),
        adds=any(bool(path.any()) for ref in reference for path in ref.paths.values()),
    )


def _rows(ref: _Reference, name: str, mine: Any, others: Any, epsilon: float) -> _Rows:
    case, path = ref.case, ref.paths[name]
    expected = case.expected[name].astype(np.float64)
    a, b = (np.asarray(rows[name], np.float64) for rows in (mine, others))
    a, b, expected, path = map(case.compared, (a, b, expected, path))
    near = fp16.SMALLEST * max(1.0, min(case.input_max, fp16.MAX))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = a - b
        added = expected - path
        # What rounding the output takes is no error, and less than fp16 tells apart is nothing.
        size = np.maximum(np.abs(expected), np.abs(path))
        rounding = np.square(np.maximum(epsilon * size, near)).sum(axis=1)
        least = np.square(np.maximum(fp16.EPSILON * size, near)).sum(axis=1)
        squares = np.maximum(np.square(difference).sum(axis=1) - rounding, 0.0)
        errors = np.sqrt(squares / np.maximum(np.square(added).sum(axis=1), least))
        errors = np.where(np.isfinite(squares), errors, np.inf)
        live = np.isfinite(a).all(axis=1)
        along_ = float(((a - path) * added)[live].sum())
    return _Rows(ref, name, errors, difference, along_, float(np.square(added[live]).sum()))


def _greatest(every: Iterable[tuple[_Rows, Any]]) -> tuple[tuple[int, float], ...]:
    """The greatest error by whatever each row belongs to; of as many rows as are told of."""
    most: dict[int, float] = {}
    for rows, keys in every:
        same = len(keys) == len(rows.errors)
        for error, belongs in zip(rows.errors.tolist(), keys, strict=True) if same else ():
            for key in belongs:
                most[key] = max(most.get(key, 0.0), error)
    return tuple((key, _digits(value)) for key, value in sorted(most.items()))


def _least(every: Sequence[tuple[_Rows, Any]]) -> tuple[float, ...]:
    """By length, the smallest of what `_greatest` has of each probe."""
    probes = grouped((id(each[0].reference), each) for each in every)
    most = [dict(_greatest(each)) for each in probes.values()]
    return tuple(min(m[n] for m in most if n in m) for n in sorted({n for m in most for n in m}))


def _channels(difference: DoubleArray) -> tuple[int, ...]:
    """First and last of the fewest neighbouring channels with nearly all of the squared error."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.square(difference).sum(axis=0)
    if not np.isfinite(squares).all() or not (whole := squares.sum()):
        return ()
    sums = np.concatenate([[0.0], np.cumsum(squares)])
    ends = np.searchsorted(sums, sums[:-1] + _NEARLY_ALL * whole)
    widths = np.where(ends > len(squares), len(squares), ends - np.arange(len(ends)))
    first = int(np.argmin(widths))
    last = first + int(widths[first]) - 1
    return (first, last) if (last - first + 1) * _NARROW <= len(squares) else ()


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
