"""`pytest-ane diff`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_arithmetic, add_budget, add_function
from pytest_ane.cli.output import Failed, Output
from pytest_ane.mlprogram.arithmetic import SIMULATED, label
from pytest_ane.mlprogram.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.mlprogram.records import MLModel, Pipeline
    from pytest_ane.tools._operations import Arithmetics, ProgramDiff

HELP = "compare two packages, or two arithmetics, op by op on the same inputs"
EXAMPLE = "pytest-ane diff int4.mlpackage fp16.mlpackage --tolerance 0.05"
_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two packages, their inputs, and the tolerance."""
    parser.add_argument("first", type=Path, help="an .mlpackage or .mlmodelc")
    parser.add_argument(
        "second",
        type=Path,
        nargs="?",
        help="another of the same module; may be left out with --arithmetic ane",
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="as of run; else seeded"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-2,
        help="relative difference |a - b| / |b| of a result (default: 0.01)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of Gaussian inputs (default: 0)")
    add_arithmetic(
        parser,
        "how both are computed: as typed (default), or as the ANE of M4 and later does; one "
        "package is compared as the ANE computes it with itself as typed",
    )
    add_function(parser)
    add_budget(parser)


def run(options: argparse.Namespace) -> Output:
    """Compare two packages operation by operation and name the first that differs.

    It fails where an operation differs beyond the tolerance.
    """
    from pytest_ane.mlprogram.model import counterpart, only_program, read_any
    from pytest_ane.mlprogram.records import Pipeline
    from pytest_ane.tools._arrays import read_inputs
    from pytest_ane.tools._operations import diff_pipelines, diff_programs

    tolerance: float = options.tolerance
    if not tolerance >= 0:
        raise ExecutionError(f"--tolerance {tolerance:g}: give a number from 0.")
    other, arithmetics = _sides(options)
    a = read_any(options.first, function=options.function)
    b = read_any(other, function=counterpart(other, options.function))
    inputs = read_inputs(options.input) if options.input else _seeded(a, options)
    if isinstance(a, Pipeline) and isinstance(b, Pipeline):
        diff = diff_pipelines(a, b, inputs, arithmetics)
    else:
        diff = diff_programs(only_program(a), only_program(b), inputs, arithmetics)
    yield from _table(diff, tolerance)
    yield from _computed(diff, options.second is None)
    data = {**vars(diff), "arithmetic": list(map(label, arithmetics))}
    if (worst := diff.first_beyond(tolerance)) is not None:
        error = (
            f"{worst.op} {worst.name!r} is the first operation that differs by more than "
            f"{tolerance:g}: {worst.note or f'relative difference {worst.relative:.3g}'}."
        )
        return Failed(error, data)
    yield f"no operation differs by more than {tolerance:g}"
    return data


def _sides(options: argparse.Namespace) -> tuple[Path, Arithmetics]:
    """The second package, and how either is computed."""
    if options.second is not None:
        return options.second, (options.arithmetic, options.arithmetic)
    if options.arithmetic == "typed":
        raise ExecutionError(
            f"{options.first} alone has nothing to be compared with; name a second package, or "
            "give --arithmetic ane to compare it with itself as typed."
        )
    return options.first, ("ane", "typed")


def _computed(diff: ProgramDiff, alone: bool) -> Iterator[str]:
    """How both were computed, and by which rules; nothing where both are as typed."""
    from pytest_ane.report.arithmetic import rules_lines

    if any(diff.rules):
        yield f"{SIMULATED} {'against the same package as typed' if alone else 'in both'}"
    for which, rules in zip(("first", "second"), diff.rules, strict=True):
        for line in rules_lines(rules) if rules else ():
            yield line if alone else f"{which}: {line}"


def _seeded(model: MLModel | Pipeline, options: argparse.Namespace) -> dict[str, Any]:
    from pytest_ane.probes.package import seeded_inputs

    return seeded_inputs(model.inputs, options.first, options.seed, function=options.function)


def _table(diff: ProgramDiff, tolerance: float) -> Iterator[str]:
    """The operations that differ most, in program order, and what could not be compared."""
    ranked = sorted(diff.differences, key=lambda d: -(d.relative if d.relative >= 0 else 1e300))
    chosen = {d.name for d in ranked[:_SHOWN] if d.relative != 0}
    width = max((len(d.name) for d in diff.differences if d.name in chosen), default=0)
    for d in diff.differences:
        if d.name in chosen:
            mark = "!" if d.beyond(tolerance) else " "
            text = d.note or f"relative {d.relative:.3g}, largest {d.largest:.3g}"
            yield f"{mark} {d.name:{width}}  {d.op:20} {text}"
    yield f"{len(diff.differences)} operations compared, by name" + _unmatched(diff)


def _unmatched(diff: ProgramDiff) -> str:
    count = len(diff.only_first) + len(diff.only_second)
    if not count:
        return ""
    return f"; {len(diff.only_first)} only in the first, {len(diff.only_second)} in the second"
