"""`pytest-ane bisect`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import ExecutionError
from pytest_ane.project import threads

if TYPE_CHECKING:
    from pytest_ane.analysis.bisect import StackEvaluation


def run(manifest: Path | None, model: str | None, cache: Path | None, most: int) -> Iterator[str]:
    """The fewest shards whose exact versions make a red stack green.

    Args:
        manifest: default `shards.toml` here.
        model: its name; may be left out where the manifest has one whole model.
        cache: the cache folder.
        most: how many shards to look for before giving up.
    """
    if most < 1:
        raise ExecutionError(f"--most {most}: give a number from 1 on.")
    threads.choose()
    from pytest_ane.analysis.bisect import bisect
    from pytest_ane.cli.stack import open_stack
    from pytest_ane.cli.status import tell
    from pytest_ane.report.bisect import evaluation_line, sentence

    evaluations: list[StackEvaluation] = []

    def note(evaluation: StackEvaluation) -> None:
        evaluations.append(evaluation)
        tell(evaluation_line(evaluation, len(evaluations), len(stack.artifacts)))

    with open_stack(manifest, model, cache) as stack:
        result = bisect(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.policy,
            stack.model,
            stack.provenance,
            most=most,
            progress=note,
        )
        tell("")
        for number, evaluation in enumerate(evaluations, start=1):
            yield evaluation_line(evaluation, number, len(stack.artifacts))
        yield sentence(result, stack.model, len(stack.artifacts), evaluations[-1].verdict)
