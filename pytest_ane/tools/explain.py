"""`pytest-ane explain`, also `residency`."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.options import add_function, count
from pytest_ane.cli.output import Output, terminal_width

if TYPE_CHECKING:
    from pytest_ane.gates.placement.segmenter import Predicted

HELP = "forecast and predict a package's placement, op by op"
EXAMPLE = "pytest-ane explain encoder.mlpackage --os 'macOS 15'"
ALIASES = ("residency",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The package and the system; for the prediction the chip, compute units and T."""
    parser.add_argument(
        "package", type=Path, help="an .mlpackage or .mlmodelc; weights may be absent"
    )
    add_function(parser, "all")
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


def run(options: argparse.Namespace) -> Output:
    """The placement forecast of a package and the predicted map of each function.

    Raises:
        AneError: one sentence.
    """
    from pytest_ane.gates.placement import forecast
    from pytest_ane.gates.placement.segmenter import predict_model
    from pytest_ane.mlprogram.digests import tree_bytes
    from pytest_ane.mlprogram.model import read_model
    from pytest_ane.report.placement import explain, prediction_lines

    model = read_model(options.package, weights=False, function=options.function)
    width = terminal_width()
    placement = forecast(model, size_bytes=tree_bytes(options.package))
    # The GPU's rates are those of M4 Pro.
    chip = options.chip or ("M4 Pro" if options.units == "ALL" else "M4")
    predictions = predict_model(model, options.units, chip, options.tokens)
    lines = [*explain(placement, options.os, width)]
    data = []
    several = len(model.program.functions) > 1
    for name in model.program.functions:
        own = [predicted for predicted in predictions if predicted.function == name]
        lines += ["", *prediction_lines(own, several=several)]
        data += [_data(predicted) for predicted in own]
    # In a pipe a finding stays on one line, for grep.
    yield from wrapped(lines, width) if width else lines
    placement = placement.under(options.os)
    return {"outcome": placement.outcome, **vars(placement), "predictions": data}


def _data(predicted: Predicted) -> dict[str, Any]:
    from pytest_ane.report.placement import off_groups, undecided_groups

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
