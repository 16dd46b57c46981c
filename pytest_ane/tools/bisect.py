"""`pytest-ane bisect`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_ane.cli.options import add_manifest_arithmetic, add_stack
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.mlprogram.arithmetic import label
from pytest_ane.mlprogram.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.tools._bisect import StackEvaluation

HELP = "find the fewest shards to blame for a red stack"
EXAMPLE = "pytest-ane bisect --model smollm2 --most 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and where to give up."""
    add_stack(parser)
    add_manifest_arithmetic(parser)
    parser.add_argument(
        "--most", type=int, default=4, metavar="N", help="give up at more than this (default: 4)"
    )


def run(options: argparse.Namespace) -> Output:
    """The fewest shards whose exact versions make a red stack green."""
    from pytest_ane.project import process as threads

    if options.most < 1:
        raise ExecutionError(f"--most {options.most}: give a number from 1 on.")
    threads.choose()
    from pytest_ane.report.arithmetic import rules_lines
    from pytest_ane.tools._bisect import bisect, evaluation_line, sentence
    from pytest_ane.tools._stack import open_stack

    evaluations: list[StackEvaluation] = []

    def note(evaluation: StackEvaluation) -> None:
        evaluations.append(evaluation)
        tell(evaluation_line(evaluation, len(evaluations), len(stack.artifacts)))

    with open_stack(
        options.manifest, options.model, options.cache, arithmetic=options.arithmetic
    ) as stack:
        simulated = stack.arithmetic == "ane"
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
        if simulated:
            yield from rules_lines(stack.rules)
        for number, evaluation in enumerate(evaluations, start=1):
            yield evaluation_line(evaluation, number, len(stack.artifacts))
    verdicts = [evaluation.verdict for evaluation in evaluations]
    last = next((v for v in verdicts if v.status == "unproven"), verdicts[-1])
    says = sentence(result, stack.model, len(stack.artifacts), last)
    stacks = [{"exact": e.exact, "status": e.verdict.status} for e in evaluations]
    data = {
        **vars(result),
        "arithmetic": label(stack.arithmetic),
        **({"rules": stack.rules} if simulated else {}),
        "evaluations": stacks,
    }
    if result.outcome == "unproven":
        return Failed(says, data)
    yield says
    return data
