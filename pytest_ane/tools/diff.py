"""`pytest-ane diff`: compare two packages, or two arithmetics, op by op on the same inputs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pytest_ane.cli.options import add_arithmetic, add_function, add_shared
from pytest_ane.cli.output import Failed, Output
from pytest_ane.mlprogram.arithmetic import SIMULATED, Arithmetic, RuleShares, label
from pytest_ane.mlprogram.arrays import Array, Arrays
from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import PipelineSession, Session
from pytest_ane.mlprogram.executor.interface import to_pixels
from pytest_ane.mlprogram.model import counterpart, only_program, read_any
from pytest_ane.mlprogram.records import Feature, MLModel, NonMaximumSuppression, Pipeline
from pytest_ane.probes.package import seeded_inputs
from pytest_ane.report.arithmetic import rules_lines
from pytest_ane.tools.run import found, read_inputs

EXAMPLE = "pytest-ane diff int4.mlpackage fp16.mlpackage --tolerance 0.05"
Arithmetics: TypeAlias = tuple[Arithmetic, Arithmetic]
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two packages, their inputs, and the tolerance."""
    add = parser.add_argument
    add("first", type=Path, help="an .mlpackage, an .mlmodelc or a shard of the manifest")
    words = "another of the same module; may be left out with --arithmetic ane"
    add("second", type=Path, nargs="?", help=words)
    add("--input", action="append", default=[], metavar="NAME=FILE", help="as of run; else seeded")
    words = "relative difference |a - b| / |b| of a result (default: 0.01)"
    add("--tolerance", type=float, default=1e-2, help=words)
    add("--seed", type=int, default=0, help="of Gaussian inputs (default: 0)")
    add_arithmetic(
        parser,
        "how both are computed: as typed (default), or as the ANE of M4 and later does; one "
        "package is compared as the ANE computes it with itself as typed",
    )
    add_function(parser)
    add_shared(parser, "manifest", "cache", "memory", "time")


def run(options: argparse.Namespace) -> Output:
    """Compare two packages operation by operation and name the first that differs.

    It fails where an operation differs beyond the tolerance.
    """
    tolerance: float = options.tolerance
    if not tolerance >= 0:
        raise ExecutionError(f"--tolerance {tolerance:g}: give a number from 0.")
    options.first = yield from found(options, options.first)
    if options.second is not None:
        options.second = yield from found(options, options.second)
    other: Path = options.second or options.first
    arithmetics: Arithmetics = (options.arithmetic, options.arithmetic)
    if options.second is None:
        arithmetics = ("ane", "typed")
        if options.arithmetic == "typed":
            raise ExecutionError(
                f"{other} alone has nothing to be compared with; name a second package, or give "
                "--arithmetic ane to compare it with itself as typed."
            )
    a = read_any(options.first, function=options.function)
    b = read_any(other, function=counterpart(other, options.function))
    inputs = read_inputs(options.input)
    if not options.input:
        inputs = seeded_inputs(a.inputs, options.first, options.seed, function=options.function)
    if isinstance(a, Pipeline) and isinstance(b, Pipeline):
        diff = diff_pipelines(a, b, inputs, arithmetics)
    else:
        diff = diff_programs(only_program(a), only_program(b), inputs, arithmetics)
    yield from _table(diff, tolerance)
    alone = options.second is None
    if any(diff.rules):
        yield f"{SIMULATED} {'against the same package as typed' if alone else 'in both'}"
    for which, rules in zip(("first: ", "second: "), diff.rules, strict=True):
        for line in rules_lines(rules) if rules else ():
            yield line if alone else f"{which}{line}"
    data = {**vars(diff), "arithmetic": list(map(label, arithmetics))}
    if (worst := diff.first_beyond(tolerance)) is not None:
        error = (
            f"{worst.op} {worst.name!r} is the first operation that differs by more than "
            f"{tolerance:g}: {worst.note or f'relative difference {worst.relative:.3g}'}."
        )
        return Failed(error, data)
    yield f"no operation differs by more than {tolerance:g}"
    return data


def _table(diff: ProgramDiff, tolerance: float) -> Iterator[str]:
    """The operations that differ most, in program order, and what could not be compared."""
    ranked = sorted(diff.differences, key=lambda d: -rank(d.relative))
    chosen = {d.name for d in ranked[:_SHOWN] if d.relative != 0}
    width = max(map(len, chosen), default=0)
    for d in diff.differences:
        if d.name in chosen:
            mark = "!" if d.beyond(tolerance) else " "
            text = d.note or f"relative {d.relative:.3g}, largest {d.largest:.3g}"
            yield f"{mark} {d.name:{width}}  {d.op:20} {text}"
    one, other = len(diff.only_first), len(diff.only_second)
    alone = f"; {one} only in the first, {other} in the second" if one or other else ""
    yield f"{len(diff.differences)} operations compared, by name{alone}"


@dataclass(frozen=True)
class OpDifference:
    """How far an operation's result in one package is from that of the same name in another.

    Attributes:
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


def diff_programs(a: MLModel, b: MLModel, inputs: Arrays, arithmetics: Arithmetics) -> ProgramDiff:
    """Run both on the same inputs, in these arithmetics, and compare results of the same name.

    `ExecutionError` where one of them cannot be run on these inputs, or they share no name.
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
    x, y = (
        session.predict(inputs, session.make_state() or None, outputs=list(names))
        for session, names in ((first, common), (second, common.values()))
    )
    return ProgramDiff(
        tuple(op_difference(kinds[n], n, x[n], y[other]) for n, other in common.items()),
        tuple(n for n in first.computed if n not in common),
        tuple(n for n in second.computed if n not in set(common.values())),
        (first.rule_shares, second.rule_shares),
    )


def diff_pipelines(
    a: Pipeline, b: Pipeline, inputs: Arrays, arithmetics: Arithmetics
) -> ProgramDiff:
    """As `diff_programs`, part by part, each part of both on what enters it in the first.

    Results are named `PART/NAME`. A suppression is one operation, named as its part, whose settings
    are compared. `ExecutionError` also where their parts are of other kinds.
    """
    kinds = [[type(part) for part in pipeline.parts] for pipeline in (a, b)]
    if kinds[0] != kinds[1]:
        raise ExecutionError(
            f"{a.path} and {b.path} are pipelines of other parts, so there is little to compare."
        )
    names = [f.name for part in a.parts for f in part.outputs]
    session = PipelineSession(a, arithmetic=arithmetics[0])
    values = {**inputs, **session.predict(inputs, outputs=names)}
    found: list[OpDifference] = []
    only: tuple[list[str], list[str]] = ([], [])
    rules: list[RuleShares | None] = [None, None]
    for name, first, second in zip(a.names, a.parts, b.parts, strict=True):
        if isinstance(first, MLModel) and isinstance(second, MLModel):
            entering = [f for f in first.inputs if f.name in values]
            given = {f.name: _entering(f, values[f.name]) for f in entering}
            part = diff_programs(first, second, given, arithmetics)
            found += [replace(d, name=f"{name}/{d.name}") for d in part.differences]
            only[0].extend(f"{name}/{each}" for each in part.only_first)
            only[1].extend(f"{name}/{each}" for each in part.only_second)
            for side, shares in enumerate(part.rules):
                before = rules[side]
                rules[side] = before + shares if before and shares else before or shares
        elif not isinstance(first, MLModel) and not isinstance(second, MLModel):
            found.append(_suppressions(name, first, second))
    return ProgramDiff(tuple(found), tuple(only[0]), tuple(only[1]), (rules[0], rules[1]))


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


def rank(relative: float) -> float:
    """A sort key of errors: NaN and infinity above everything finite."""
    return relative if math.isfinite(relative) else math.inf


def _plain(name: str) -> str:
    return name.removesuffix("_cast_fp16")


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
