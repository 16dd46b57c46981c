"""`pytest-ane explain`: say where a package's ops run, or a recorded plan's; or list weights."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pytest_ane.cli.options import add_function, add_shared, count
from pytest_ane.cli.output import Output, terminal_width
from pytest_ane.gates.compression import weights_table
from pytest_ane.gates.placement import estimated_work, forecast
from pytest_ane.gates.placement.plans import join, read_plan
from pytest_ane.gates.placement.plans.join import summarise
from pytest_ane.gates.placement.segmenter import predict_model
from pytest_ane.gates.verdict import counted
from pytest_ane.make import Distortion, compare_weights, take_census
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import PlanError
from pytest_ane.mlprogram.model import SUFFIXES, counterpart, read_model
from pytest_ane.mlprogram.text import size_ratio
from pytest_ane.report.arithmetic import wrapped
from pytest_ane.report.placement import (
    explain,
    explain_plan,
    off_groups,
    prediction_lines,
    undecided_groups,
)
from pytest_ane.report.table import table
from pytest_ane.tools.run import found

EXAMPLE = "pytest-ane explain encoder.mlpackage --os 'macOS 15'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and what is asked of it."""
    add = parser.add_argument
    words = (
        "an .mlpackage or .mlmodelc, whose weights may be absent, or a shard of the manifest; or "
        "a plan or log that a Mac's tools recorded"
    )
    add("file", type=Path, help=words)
    add_function(parser, "all; with --weights the model's own")
    add("--os", default="macOS 26", help="target system (default: macOS 26)")
    words = "compute units of the prediction (default: CPU_AND_NE)"
    add("--units", choices=("CPU_AND_NE", "ALL"), default="CPU_AND_NE", help=words)
    add("--chip", metavar="NAME", help="chip of the prediction (default: M4, with ALL M4 Pro)")
    words = "T of flexible inputs in the prediction (default: the least and the greatest)"
    add("--tokens", type=count, metavar="T", help=words)
    words = (
        "of a recorded plan: the .mlmodelc or .mlpackage it is of, for types and what the "
        "plan leaves out"
    )
    add("--package", type=Path, help=words)
    words = "list every weight in place of operations: bits, bytes, error of its compression"
    add("--weights", action="store_true", help=words)
    words = "with --weights: the uncompressed form, for errors"
    add("--against", type=Path, metavar="PACKAGE", help=words)
    add_shared(parser, "manifest", "cache")


def run(options: argparse.Namespace) -> Output:
    """The forecast and predicted map of a package, its weights, or counts of a recorded plan."""
    options.file = yield from found(options, options.file)
    is_package = options.file.suffix in SUFFIXES or options.file.is_dir()
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
    placement = replace(placement, work=estimated_work(predictions), predictions=predictions)
    lines = [*explain(placement, options.os, width)]
    data = []
    several = len(model.program.functions) > 1
    for name in model.program.functions:
        own = [predicted for predicted in predictions if predicted.function == name]
        lines += ["", *prediction_lines(own, several=several)]
        data += [
            {
                "function": predicted.function,
                "tokens": predicted.tokens,
                "unknown": predicted.unknown,
                **vars(prediction := predicted.prediction),
                "margin": prediction.margin,
                "switches": prediction.switches,
                "off": off_groups(prediction),
                "undecided": undecided_groups(prediction),
            }
            for predicted in own
        ]
    # In a pipe a finding stays on one line, for grep.
    yield from wrapped(lines, width) if width else lines
    placement = placement.under(options.os)
    told = {key: value for key, value in vars(placement).items() if key != "work"}
    return {"outcome": placement.outcome, **told, "predictions": data}


def _plan(options: argparse.Namespace) -> Output:
    plan = read_plan(options.file)
    if options.package is not None:
        plan = join(plan, read_model(options.package, weights=False))
    yield from explain_plan(plan, terminal_width())
    about = {"source": plan.source, "compute_units": plan.compute_units, "messages": plan.messages}
    return {**about, **vars(summarise(plan))}


def _weights(package: Path, against: Path | None, function: str | None) -> Output:
    """How a package stores its weights, and with `against` what that cost."""
    model = read_model(package, function=function)
    if len(functions := model.program.functions) > 1:
        yield f"function {model.function} of {', '.join(functions)}; --function names another"
        model = replace(model, program=model.program.only(model.function))
    census = take_census(model)
    errors: tuple[Distortion, ...] = ()
    if against is not None:
        original = read_model(against, function=counterpart(against, model.function or None))
        errors = compare_weights(model, original, None).distortions
    yield from table(replace(weights_table(census, None, (), errors), title=""), terminal_width())
    ratio = census.dense_bytes / census.stored_bytes if census.stored_bytes else 0.0
    count = counted(len(census.weights), "weight")
    yield f"{count}, {census.stored_bytes:,} bytes, {size_ratio(ratio)}"
    if against is not None and (missing := len(census.weights) - len(errors)):
        yield f"{missing} of them have no counterpart of the same name and shape in {against}"
    by_name = {e.name: {"sse": e.sse, "snr_db": e.snr} for e in errors}
    weights = [{**vars(w), "storage": w.storage, **by_name.get(w.name, {})} for w in census.weights]
    return {"bytes": census.stored_bytes, "fp16_bytes": census.dense_bytes, "weights": weights}
