"""`pytest-ane plan`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ane.cli.output import Output, terminal_width

HELP = "count where a recorded compute plan runs operations, and what that proves"
EXAMPLE = "pytest-ane plan plan.json --package encoder.mlmodelc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recorded file, and its package."""
    parser.add_argument("file", type=Path, help="a plan or log that a Mac's tools recorded")
    parser.add_argument(
        "--package",
        type=Path,
        help="the .mlmodelc or .mlpackage it is of, for types and what the plan leaves out",
    )


def run(options: argparse.Namespace) -> Output:
    """Counts of a recorded plan, and the operations that are not on the ANE."""
    from pytest_ane.gates.placement.plans import join, read_plan
    from pytest_ane.gates.placement.plans.join import summarise
    from pytest_ane.report.placement import explain_plan

    plan = read_plan(options.file)
    if options.package is not None:
        from pytest_ane.mlprogram.model import read_model

        plan = join(plan, read_model(options.package, weights=False))
    yield from explain_plan(plan, terminal_width())
    about = {"source": plan.source, "compute_units": plan.compute_units, "messages": plan.messages}
    return {**about, **vars(summarise(plan))}
