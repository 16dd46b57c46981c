"""`pytest-ane explain`: say where a package's ops run, or a recorded plan's; or list weights."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pytest_ane.cli.options import add_function, count
from pytest_ane.cli.output import Output, terminal_width
from pytest_ane.gates.compression import weights_table
from pytest_ane.gates.placement import forecast
from pytest_ane.gates.placement.plans import join, read_plan
from pytest_ane.gates.placement.plans.join import summarise
from pytest_ane.gates.placement.segmenter import Predicted, predict_model
from pytest_ane.make import BuildRecord, Distortion, compare_weights, take_census
from pytest_ane.make.record import PACKAGE, RECORD
from pytest_ane.manifest import Compression
from pytest_ane.mlprogram.digests import tree_bytes, tree_digest
from pytest_ane.mlprogram.errors import PlanError
from pytest_ane.mlprogram.model import counterpart, read_model
from pytest_ane.mlprogram.text import size_ratio
from pytest_ane.mlprogram.weights import Weight
from pytest_ane.report.placement import (
    explain,
    explain_plan,
    off_groups,
    prediction_lines,
    undecided_groups,
)
from pytest_ane.report.table import table

EXAMPLE = "pytest-ane explain encoder.mlpackage --os 'macOS 15'"
_PACKAGES = (".mlpackage", ".mlmodelc")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and what is asked of it."""
    parser.add_argument(
        "file",
        type=Path,
        help="an .mlpackage or .mlmodelc, whose weights may be absent; or a plan or log that a "
        "Mac's tools recorded",
    )
    add_function(parser, "all; with --weights the model's own")
    parser.add_argument("--os", default="macOS 26", help="target system (default: macOS 26)")
    parser.add_argument(
        "--units",
        choices=("CPU_AND_NE", "ALL"),
        default="CPU_AND_NE",
        help="compute units of the prediction (default: CPU_AND_NE)",
    )
    parser.add_argument(
        "--chip", metavar="NAME", help="chip of the prediction (default: M4, with ALL M4 Pro)"
    )
    parser.add_argument(
        "--tokens",
        type=count,
        metavar="T",
        help="T of flexible inputs in the prediction (default: the least and the greatest)",
    )
    parser.add_argument(
        "--package",
        type=Path,
        help="of a recorded plan: the .mlmodelc or .mlpackage it is of, for types and what the "
        "plan leaves out",
    )
    parser.add_argument(
        "--weights",
        action="store_true",
        help="list every weight in place of operations: bits, bytes, error of its compression",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PACKAGE",
        help="with --weights: the uncompressed form, for errors (default: as measured when it was "
        "built)",
    )


def run(options: argparse.Namespace) -> Output:
    """The forecast and predicted map of a package, its weights, or counts of a recorded plan."""
    is_package = options.file.suffix in _PACKAGES or options.file.is_dir()
    if options.package is not None and is_package:
        raise PlanError(f"--package is for a recorded plan, and {options.file} is a package.")
    if options.against is not None and not options.weights:
        raise PlanError("--against is for the errors of weights; give --weights too.")
    if options.weights:
        return (yield from _weights(options.file, options.against, options.function))
    return (yield from (_placement(options) if is_package else _plan(options)))


def _placement(options: argparse.Namespace) -> Output:
    model = read_model(options.file, weights=False, function=options.function)
    width = terminal_width()
    placement = forecast(model, size_bytes=tree_bytes(options.file))
    # The GPU's rates are those of M4 Pro.
    chip = options.chip or ("M4 Pro" if options.units == "ALL" else "M4")
    predictions = predict_model(model, options.units, chip, options.tokens)
    lines = [*explain(placement, options.os, width)]
    data = []
    several = len(model.program.functions) > 1
    for name in model.program.functions:
        own = [predicted for predicted in predictions if predicted.function == name]
        lines += ["", *prediction_lines(own, several=several)]
        data += [_predicted(predicted) for predicted in own]
    # In a pipe a finding stays on one line, for grep.
    yield from wrapped(lines, width) if width else lines
    placement = placement.under(options.os)
    return {"outcome": placement.outcome, **vars(placement), "predictions": data}


def _predicted(predicted: Predicted) -> dict[str, Any]:
    prediction = predicted.prediction
    return {
        "function": predicted.function,
        "tokens": predicted.tokens,
        "unknown": predicted.unknown,
        **vars(prediction),
        "margin": prediction.margin,
        "switches": prediction.switches,
        "off": off_groups(prediction),
        "undecided": undecided_groups(prediction),
    }


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """Lines broken at spaces, what is continued indented under its beginning."""
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line, max(width, 40), subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _plan(options: argparse.Namespace) -> Output:
    """Counts of a recorded plan, and the operations that are not on the ANE."""
    plan = read_plan(options.file)
    if options.package is not None:
        plan = join(plan, read_model(options.package, weights=False))
    yield from explain_plan(plan, terminal_width())
    about = {"source": plan.source, "compute_units": plan.compute_units, "messages": plan.messages}
    return {**about, **vars(summarise(plan))}


def _weights(package: Path, against: Path | None, function: str | None) -> Output:
    """A package's weights: settings and storage, bytes, and errors of compression.

    The settings, and errors without `against`, are known where the package has its build record
    next to it, as in the cache.
    """
    model = read_model(package, function=function)
    if len(functions := model.program.functions) > 1:
        yield f"function {model.function} of {', '.join(functions)}; --function names another"
        model = replace(model, program=model.program.only(model.function))
    census, record = take_census(model), _record(package)
    settings = _settings(record)
    errors: tuple[Distortion, ...] = ()
    if against is not None:
        original = read_model(against, function=counterpart(against, model.function or None))
        errors = compare_weights(model, original, settings).distortions
    elif record and record.digest == tree_digest(package):
        errors = record.weights.distortions
    elif record:
        yield "the package has other bytes than its build measured: errors are left out"
    notes = record.notes if record else ()
    rows = weights_table(census, settings, notes, errors)
    yield from table(replace(rows, title=""), terminal_width())
    ratio = census.dense_bytes / census.stored_bytes if census.stored_bytes else 0.0
    count = len(census.weights)
    yield (
        f"{count} {'weight' if count == 1 else 'weights'}, {census.stored_bytes:,} bytes, "
        f"{size_ratio(ratio)}"
    )
    if against is not None and (missing := count - len(errors)):
        yield f"{missing} of them have no counterpart of the same name and shape in {against}"
    by_name = {error.name: error for error in errors}
    return {
        "bytes": census.stored_bytes,
        "fp16_bytes": census.dense_bytes,
        "notes": notes,
        "weights": [_weight(weight, by_name.get(weight.name)) for weight in census.weights],
    }


def _weight(weight: Weight, error: Distortion | None) -> dict[str, Any]:
    errors = {"sse": error.sse, "snr_db": error.snr} if error else {}
    return {**vars(weight), "storage": weight.storage, **errors}


def _record(package: Path) -> BuildRecord | None:
    folder = package.absolute().parent
    is_built = package.name == PACKAGE and (folder / RECORD).is_file()
    return BuildRecord.read(folder) if is_built else None


def _settings(record: BuildRecord | None) -> Compression | None:
    """The compression settings of the build; None where another version wrote the record."""
    adapter: TypeAdapter[Compression] = TypeAdapter(Compression)
    try:
        return adapter.validate_python(record.key.get("compression")) if record else None
    except ValidationError:
        return None
