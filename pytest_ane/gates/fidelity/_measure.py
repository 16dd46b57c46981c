"""The fidelity measurement: an artifact's outputs against its reference's, probe by probe.

Every metric is computed in float64. What probes exercise, and what they leave out, is told with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_ane.backends import Runner
from pytest_ane.gates.fidelity._records import Comparison, Covered, Fidelity, Unmoved
from pytest_ane.gates.verdict import rounded
from pytest_ane.mlprogram.arithmetic import RuleShares
from pytest_ane.mlprogram.arrays import DoubleArray, FloatArray
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor.prepare import uses
from pytest_ane.mlprogram.metrics.tensors import (
    Contributions,
    contributions,
    contributions_off_input,
    cosine,
    finite_fraction,
    relative_l2,
    worst_abs_error,
    zeros,
)
from pytest_ane.mlprogram.records import DType, MLModel, Pipeline
from pytest_ane.probes.cases import Case
from pytest_ane.probes.domains import FLOATS
from pytest_ane.probes.error_budget import (
    ErrorBudget,
    Run,
    difference,
    nearest,
    run_cases,
    total_error,
)

_REAL = (*FLOATS, DType.BF16)


def measure(
    runner: Runner,
    cases: Iterable[Case],
    *,
    compared: bool,
    provenance: Mapping[str, Any],
    budget: ErrorBudget | str = "",
    simulated: Runner | None = None,
    rules: Callable[[], RuleShares] = RuleShares,
    program: MLModel | Pipeline | None = None,
) -> Fidelity:
    """Run every case on the artifact and compare; `compared` is False without a reference.

    `budget` is that of the error, or why there is none. A `simulated` runner, whose `rules` are
    asked after it ran, is what is compared, and `runner` then tells what the ANE's arithmetic
    costs. Of a `program` probes are compared with each other, too.
    `ExecutionError` where the artifact cannot be run, or lacks an output of the reference's shape.
    """
    cases = list(cases)
    # Without a reference no run is compared with the one as typed.
    typed = runs = list(run_cases(runner, cases)) if compared or simulated is None else []
    more: dict[str, Any] = {}
    if simulated is not None:
        runs = list(run_cases(simulated, cases))
        cost = difference(cases, runs, typed) if compared else None
        more = {"arithmetic": "ane", "cost": cost, "rules": rules()}
    if compared:
        more["same_module"] = any(case.same_module for case in cases)
    if program is not None:
        more["unmoved"] = tuple(unmoved(program, cases, runs))
    comparisons = tuple(
        comparison
        for case, run in zip(cases, runs, strict=True)
        for comparison in _compared(case, run, compared)
    )
    if isinstance(budget, str):
        more["unsplit"] = budget
    else:
        more |= {"budget": budget, "total": total_error(cases, typed)}
    return Fidelity(comparisons, compared, dict(provenance), **more)


def _compared(case: Case, run: Run, compared: bool) -> Iterator[Comparison]:
    outputs, answers = case.paired(run.rows) if compared else (run.rows, case.expected)
    for name, expected in answers.items() if compared else ():
        actual = outputs.get(name)
        if actual is None or actual.shape != expected.shape:
            given = ", ".join(f"{key} {list(rows.shape)}" for key, rows in outputs.items())
            raise ExecutionError(
                f"{case.name}: the reference gives {name} {list(expected.shape)}, the artifact "
                f"{given or 'nothing'}; outputs are compared by name and must have one shape."
            )
        residual = nearest(run.alike.get(name, ()), expected)
        yield compare(case, name, actual, expected, residual)
    for name in outputs:
        # The reference says nothing of it, so it is not compared; NaN in it still fails.
        if not compared or name not in case.expected:
            yield alone(case, name, outputs[name])


def compare(
    case: Case, name: str, actual: FloatArray, expected: FloatArray, residual: FloatArray | None
) -> Comparison:
    """Rows `[T, C]` of an output, C > 0, against the reference's.

    `residual` has input rows to project out of both outputs where the residual path is unknown. On
    `extreme` inputs a contribution is lost in the rounding of the sum, so it is not compared.
    """
    exact = name in case.residual
    path = case.residual[name] if exact else residual
    if case.kind == "extreme":
        path = None
    if undefined := 1.0 - finite_fraction(expected):
        return replace(alone(case, name, actual), undefined=undefined)
    a, b = (case.compared(rows).astype(np.float64) for rows in (actual, expected))
    path = None if path is None else case.compared(path)
    zero = zeros(a, b, case.input_max)
    undecided = np.isin(np.arange(len(a)), case.undecided)
    error_max, live = worst_abs_error(a, b), zero.live
    positions = np.flatnonzero(live) + case.start
    if not live.all():
        a, b, path = a[live], b[live], None if path is None else path[live]
    added = contributions if exact else contributions_off_input
    return replace(
        alone(case, name, actual),
        cosines=tuple(round(x, 9) for x in _cosines(a, b).tolist()),
        positions=tuple(positions.tolist()),
        both_zero=_indices(zero.both & ~undecided, case.start),
        one_zero=_indices(zero.one, case.start),
        error_max=error_max,
        relative=tuple(rounded(x, 4) for x in relative_l2(a, b).tolist()),
        undecided=_indices(undecided, case.start),
        experts=tuple(case.routed[i] for i in np.flatnonzero(zero.one)) if case.routed else (),
        **({} if path is None else _contributed(added(a, b, path), positions)),
    )


def _cosines(a: DoubleArray, b: DoubleArray) -> DoubleArray:
    """By row.

    A single number has no angle but its sign: its relative error counts as the angle between two
    vectors of one length that are so far apart, |a - b|^2 = 2 |b|^2 (1 - cosine).
    """
    if a.shape[1] > 1:
        return cosine(a, b)
    return np.maximum(1 - np.square(relative_l2(a, b)) / 2, -1.0)


def alone(case: Case, name: str, actual: FloatArray) -> Comparison:
    """Rows `[T, C]` of an output that the reference does not have: only whether they are finite."""
    return Comparison(
        kind=case.kind, probe=case.name, output=name, length=case.length, input_max=case.input_max,
        cosines=(), positions=(), both_zero=_indices(~actual.any(axis=1), case.start), one_zero=(),
        finite=finite_fraction(actual), error_max=0.0,
        spoilt=_indices(~np.isfinite(actual).all(axis=1), case.start), causal=case.causal,
    )  # fmt: skip


def _contributed(added: Contributions, positions: npt.NDArray[Any]) -> dict[str, Any]:
    cosines, idle, ratios, single = added
    return {
        "contributions": tuple(round(x, 6) for x in cosines[~idle].tolist()),
        "idle": tuple(positions[idle].tolist()),
        "one_adds": tuple(positions[single].tolist()),
        "residual": None if idle.all() else rounded(float(np.median(ratios[~idle])), 4),
    }


def _indices(mask: npt.ArrayLike, start: int) -> tuple[int, ...]:
    return tuple((np.flatnonzero(mask) + start).tolist())


def unmoved(
    program: MLModel | Pipeline, cases: Sequence[Case], runs: Sequence[Run]
) -> Iterator[Unmoved]:
    """Outputs that are zero, or the same, in all probes, but for what a detector may not find."""
    values = ([x for call in (*c.calls, c.states) for x in call.values()] for c in cases)
    inputs = [sha256(b"".join(np.asarray(x).tobytes() for x in each)).digest() for each in values]
    objects = {n for case in cases for pair, _ in case.detections for n in pair}
    reached, names = _reached(program), {feature.name for feature in program.outputs}
    for feature in program.outputs:
        name = feature.name
        rows = [run.rows[name] for run in runs if name in run.rows]
        if name in objects or len(rows) < len(runs) or not all(x.size for x in rows):
            continue
        first: dict[tuple[int, ...], tuple[bytes, FloatArray]] = {}
        pairs = [
            np.array_equal(x, before)
            for asked, x in zip(inputs, rows, strict=True)
            for other, before in [first.setdefault(x.shape, (asked, x))]
            if asked != other
        ]
        zero = not any(x.any() for x in rows)
        if zero or all(pairs):
            yield Unmoved(
                name,
                "zero" if zero else "same" if pairs else "alone",
                constant=name not in reached
                and (not program.inputs or not reached.isdisjoint(names)),
                whole=feature.dtype not in _REAL and feature.kind != "image",
            )


def _reached(program: MLModel | Pipeline) -> set[str]:
    """Names whose values inputs may change, over states too; shapes alone are no values."""
    if isinstance(program, Pipeline):
        return {feature.name for feature in program.outputs}
    names, before = {feature.name for feature in program.inputs}, 0
    while before != len(names):  # What a state keeps is read before it is written.
        before = len(names)
        for op in program.main.block.operations:
            if op.op != "shape" and not names.isdisjoint(uses(op)):
                names.update(out.name for out in op.outputs)
                names.update(uses(op) if op.op == "write_state" else ())
    return names


def coverage(
    program: MLModel | Pipeline, cases: Sequence[Case], *, golden: bool = False
) -> tuple[Covered, ...]:
    """What probes exercise; those of `golden` tensors are as few as their file holds."""
    if golden:
        return (*coverage(program, cases), *_golden(program, cases))
    lengths = ", ".join(map(str, _lengths(cases)))
    rest = [
        *inputs_covered(cases),
        Covered("lengths", f"{lengths} compared" if lengths else "nothing compared"),
    ]
    if isinstance(program, Pipeline):
        parts = (Covered(f"part {name}", "run") for name in program.names)
        return (*parts, *_detected(cases), *rest)
    functions = [
        Covered(f"function {name}", "run")
        if function is program.main
        else _left(f"function {name}", "not run", f'choose it with function = "{name}" in a table '
                   "of a shard")
        for name, function in program.program.functions.items()
    ]  # fmt: skip
    return (*functions, *_states(program, cases), *rest)


def _lengths(cases: Sequence[Case]) -> list[int]:
    """Positions of calls; where outputs have none, the sizes of the inputs' axes that differ."""
    if (lengths := {case.length for case in cases}) == {1}:
        calls = [{name: np.shape(x) for name, x in call.items()} for c in cases for call in c.calls]
        first = calls[0] if calls else {}
        axes = [(name, i) for name, shape in first.items() for i in range(len(shape))]
        sizes = [{call[n][i] for call in calls if len(call.get(n, ())) > i} for n, i in axes]
        lengths = set().union(*(each for each in sizes if len(each) > 1)) or lengths
    return sorted(lengths)


def _golden(program: MLModel | Pipeline, cases: Sequence[Case]) -> Iterator[Covered]:
    """Outputs that the file does not have, and inputs of which it has one shape of several."""
    known = {name for case in cases for name in case.expected}
    for feature in program.outputs:
        if feature.name not in known and (feature.dtype in _REAL or feature.kind == "image"):
            remedy = f"record it too, 0.out.{feature.name}"
            yield _left(f"output {feature.name}", "the golden tensors do not have it", remedy)
    for feature in program.inputs:
        shapes = {
            np.shape(call[feature.name])
            for case in cases for call in case.calls if feature.name in call
        }  # fmt: skip
        if any(low != high for low, high in feature.extents) and len(shapes) == 1:
            how = f"the golden tensors have the shape {list(*shapes)} alone"
            yield _left(f"flexible input {feature.name}", how, "record probes of other lengths too")


def _left(what: str, how: str, remedy: str) -> Covered:
    return Covered(what, how, exercised=False, remedy=remedy)


def inputs_covered(cases: Sequence[Case]) -> Iterator[Covered]:
    """Of integers that may be anything, two were drawn; of others, perhaps not every id."""
    known = {name: domain for case in cases for name, domain in case.domains.items()}
    for name, domain in known.items():
        table, how = f'[models.NAME.shard.ID.inputs.{name}] kind = "ids"', domain.sentence
        drawn, remedy = None, ""
        if domain.count:
            calls = [call[name] for case in cases for call in case.calls if name in call]
            drawn = len({int(i) for values in calls for i in np.unique(values)})
            how = f"{how}; {drawn:,} of {domain.count:,} drawn"
        if domain.source == "default" and domain.kind == "ids":
            remedy = f"say what it holds, such as {table}, count = ... in shards.toml"
        elif drawn != domain.count and not (domain.input and domain.input.sample):
            remedy = "give the package longer calls, or say that a sample is enough: "
            remedy += f"{table}, count = {domain.count}, sample = true"
        yield Covered(f"input {name}", how, exercised=not remedy, remedy=remedy)


def _states(program: MLModel, cases: Sequence[Case]) -> Iterator[Covered]:
    calls = max((len(case.calls) for case in cases), default=0)
    for state in program.states:
        carried = [case.carried[state.name] for case in cases if state.name in case.carried]
        what = f"state {state.name}"
        if calls <= 1:
            remedy = "give a reference that runs sequences, or golden tensors of several calls"
            yield _left(what, "every probe is one call on a fresh state", remedy)
        elif carried and not any(carried):
            how = "what earlier calls leave in it changes nothing of the reference's outputs"
            remedy = "give inputs with which it is read, in golden tensors of several calls"
            yield _left(what, how, remedy)
        else:
            yield _slots(what, f"carried over up to {calls} calls", state.name, cases)


def _slots(what: str, how: str, state: str, cases: Sequence[Case]) -> Covered:
    """Which slots calls wrote, or read as they were filled, where positions are known."""
    known = [case for case in cases if case.spans and state in case.slots]
    if not known:
        return Covered(what, how)
    count = known[0].slots[state]
    spans = [span for case in known for span in case.spans]
    called = {at for start, size in spans for at in range(start, start + size)}
    filled = max((sum(max(case.spans)) for case in known if state in case.states), default=0)
    reached = {at % count for at in (*called, *range(filled))}
    first, last = min(called), max(called)
    of = f"of {count:,}" if last < count else f"round {count:,} slots"
    how = f"{how}, positions {first:,} to {last:,} {of}"
    if len(called) <= last - first:
        how += f", {len(called):,} of them in calls"
    if left := count - len(reached):
        remedy = "give golden tensors of calls that reach its end"
        return _left(what, f"{how}: nothing wrote or read {left:,} slots", remedy)
    return Covered(what, how)


def _detected(cases: Sequence[Case]) -> Iterator[Covered]:
    for pair, raw in dict.fromkeys(each for case in cases for each in case.detections):
        answers = [case.expected for case in cases if pair[0] in case.expected]
        what, pictures = f"outputs {', '.join(pair)}", any(case.pictures for case in cases)
        if answers and not pictures and raw[0] in answers[0]:
            yield Covered(what, f"compared as {', '.join(raw)}")
        elif answers and not any(len(rows[pair[0]]) for rows in answers):
            remedy = 'give pictures of what it detects, kind = "image", files = ["cat.png"], in '
            remedy += "[models.NAME.shard.ID.inputs.INPUT]"
            yield _left(what, "nothing was detected in any probe", remedy)
