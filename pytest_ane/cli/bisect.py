"""`pytest-ane bisect`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.core.errors import ExecutionError
from pytest_ane.project import threads

if TYPE_CHECKING:
    from pytest_ane.analysis.bisect import Trial


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
    from pytest_ane.report.bisect import sentence, trial

    trials: list[Trial] = []

    def note(found: Trial) -> None:
        trials.append(found)
        tell(trial(found, len(trials), len(stack.artifacts)))

    with open_stack(manifest, model, cache) as stack:
        found = bisect(
            stack.chain,
            stack.reference,
            stack.golden,
            stack.states,
            stack.policy,
            stack.model,
            stack.provenance,
            most=most,
            say=note,
        )
        tell("")
        for number, one in enumerate(trials, start=1):
            yield trial(one, number, len(stack.artifacts))
        yield sentence(found, stack.model, len(stack.artifacts), trials[-1].verdict.reasons)
