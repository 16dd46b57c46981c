"""`pytest-ane drift`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from pytest_ane.cli.options import add_manifest_arithmetic, add_stack
from pytest_ane.cli.output import Failed, Output, tell
from pytest_ane.mlprogram.arithmetic import label

HELP = "measure what each shard does to the hidden states"
EXAMPLE = "pytest-ane drift --model smollm2 --json > drift.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and the arithmetic."""
    add_stack(parser)
    add_manifest_arithmetic(parser)


def run(options: argparse.Namespace) -> Output:
    """How hidden states drift along a stack, and what each shard alone does to it."""
    from pytest_ane.project import process as threads

    threads.choose()
    from pytest_ane.tools._drift import find_causes, lines, measure_drift
    from pytest_ane.tools._stack import open_stack

    with open_stack(
        options.manifest, options.model, options.cache, arithmetic=options.arithmetic
    ) as stack:
        drift = measure_drift(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.provenance,
            lambda shard, done, total: tell(f"{shard} ({done + 1} of {total})"),
        )
        tell("")
        if stack.arithmetic == "ane":
            drift = replace(drift, rules=stack.rules)
        causes = find_causes(drift, stack.policy, stack.model)
        yield from lines(drift, causes, stack.model)
    about = {"command": "drift", "model": stack.model}
    data = {**about, **vars(drift), "arithmetic": label(stack.arithmetic)}
    unproven = causes.stack.status == "unproven"
    return Failed(f"{stack.model} is unproven.", data) if unproven else data
