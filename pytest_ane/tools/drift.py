"""`pytest-ane drift`."""

from __future__ import annotations

import argparse

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
    from pytest_ane.tools._drift import find_causes, in_ane, lines, measure_drift
    from pytest_ane.tools._stack import judged, open_stack

    with open_stack(
        options.manifest, options.model, options.cache, arithmetic=options.arithmetic
    ) as stack:
        chain, policy = judged(stack)
        drift = measure_drift(
            chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.provenance,
            lambda shard, done, total: tell(f"{shard} ({done + 1} of {total})"),
        )
        tell("")
        if stack.simulated is not None:
            drift = in_ane(drift, stack.rules)
        causes = find_causes(drift, policy, stack.model)
        yield from lines(drift, causes, stack.model)
    about = {"command": "drift", "model": stack.model}
    arithmetic = label("typed" if drift.rules is None else "ane")
    data = {**about, **vars(drift), "arithmetic": arithmetic}
    unproven = causes.stack.status == "unproven"
    return Failed(f"{stack.model} is unproven.", data) if unproven else data
