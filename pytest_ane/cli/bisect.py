"""`pytest-ane bisect`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_stack
from pytest_ane.cli.output import Output
from pytest_ane.cli.terminal import tell
from pytest_ane.core.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.analysis.bisect import StackEvaluation

HELP = "find the fewest shards to blame for a red stack"
EXAMPLE = "pytest-ane bisect --model smollm2 --most 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and where to give up."""
    add_stack(parser)
    parser.add_argument(
        "--most", type=int, default=4, metavar="N", help="give up at more than this (default: 4)"
    )


def run(options: argparse.Namespace) -> Output:
    """The fewest shards whose exact versions make a red stack green."""
    from pytest_ane.project import threads

    if options.most < 1:
        raise ExecutionError(f"--most {options.most}: give a number from 1 on.")
    threads.choose()
    from pytest_ane.analysis.bisect import bisect
    from pytest_ane.cli.stack import open_stack
    from pytest_ane.report.bisect import evaluation_line, sentence

    evaluations: list[StackEvaluation] = []

    def note(evaluation: StackEvaluation) -> None:
        evaluations.append(evaluation)
        tell(evaluation_line(evaluation, len(evaluations), len(stack.artifacts)))

    with open_stack(options.manifest, options.model, options.cache) as stack:
        result = bisect(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.policy,
            stack.model,
            stack.provenance,
            most=options.most,
            progress=note,
        )
        tell("")
        for number, evaluation in enumerate(evaluations, start=1):
            yield evaluation_line(evaluation, number, len(stack.artifacts))
        yield sentence(result, stack.model, len(stack.artifacts), evaluations[-1].verdict)
    stacks = [{"exact": e.exact, "status": e.verdict.status} for e in evaluations]
    return {**vars(result), "evaluations": stacks}
