"""The line that says what decides the verdicts of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_ane.plugin import canary, workspace
from pytest_ane.report.text import header


def line(config: pytest.Config) -> str:
    """One line for the terminal and for GitHub."""
    space = workspace.of(config)
    return header(
        asked=space.selection,
        selected=space.shards,
        of=len(space.manifest.shards),
        backend=space.backend_name,
        device=f"{space.machine} · {space.units}" if space.machine else "",
        recorded=any(
            space.evidence.path("placement", shard.qualified).exists() for shard in space.shards
        ),
        thresholds=list(map(str, space.thresholds)),
        unproven=space.unproven,
        cache=space.cache_root,
        canaries=list(_canaries(space, canary.of(config))),
    )


def _canaries(space: workspace.Workspace, canaries: canary.Canaries) -> Iterator[str]:
    """`L01 first`, or that the selection leaves a canary out."""
    for name in dict.fromkeys(shard.model for shard in space.shards):
        if first := ", ".join(shard.id for shard in canaries.of(name)):
            yield f"{first} first"
        chosen = {shard.id for shard in space.shards if shard.model == name}
        named = space.manifest.model_of(name).canary
        if absent := ", ".join(shard for shard in named if shard not in chosen):
            yield f"{absent} not selected"
