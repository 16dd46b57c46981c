"""`pytest-ane drift`."""

from __future__ import annotations

import argparse

from pytest_ane.cli.options import add_stack
from pytest_ane.cli.output import Output
from pytest_ane.cli.terminal import tell

HELP = "measure what each shard does to the hidden states"
EXAMPLE = "pytest-ane drift --model smollm2 --json > drift.json"

add_arguments = add_stack


def run(options: argparse.Namespace) -> Output:
    """How hidden states drift along a stack, and what each shard alone does to it."""
    from pytest_ane.project import threads

    threads.choose()
    from pytest_ane.analysis.drift import find_causes, measure_drift
    from pytest_ane.cli.stack import open_stack
    from pytest_ane.report.drift import lines

    with open_stack(options.manifest, options.model, options.cache) as stack:
        drift = measure_drift(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.provenance,
            lambda shard, done, total: tell(f"{shard} ({done + 1} of {total})"),
        )
        tell("")
        yield from lines(drift, find_causes(drift, stack.policy, stack.model), stack.model)
    return drift
