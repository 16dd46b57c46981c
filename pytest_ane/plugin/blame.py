"""The cause of a shard's error, beside its verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pytest_ane.gates.verdict import Verdict
from pytest_ane.mlprogram.errors import AneError
from pytest_ane.mlprogram.text import printable
from pytest_ane.plugin.workspace import Workspace
from pytest_ane.tools._blame_project import blame_shard
from pytest_ane.tools._blame_words import cause, lines, tables

TOLD = "ane.blame"
"""Name of the test property that holds the cause."""
_AT_MOST = 3
"""Failed shards that one process explains: each has its uncompressed package built."""
_COUNT = pytest.StashKey[int]()


def is_wanted(verdict: Verdict, when: str) -> bool:
    """Whether a verdict is to be explained: `always`, `failed` or `never`."""
    return verdict.gate == "fidelity" and (
        when == "always" or (when == "failed" and verdict.status == "failed")
    )


def tell(item: pytest.Item, space: Workspace, verdict: Verdict) -> tuple[str, Verdict]:
    """The cause of a shard's error, or one line on why it is unknown.

    Returns:
        What people read, and the verdict with the cause as a finding and tables.
    """
    done = item.config.stash.get(_COUNT, 0)
    if space.blame != "always" and done >= _AT_MOST:
        return (
            f"{done} shards were explained already; for this one run: "
            f"pytest-ane blame {verdict.subject}"
        ), verdict
    item.config.stash[_COUNT] = done + 1
    try:
        shard = next(s for s in space.shards if s.qualified == verdict.subject)
        with space.progress.showing(f"searching the cause in {shard.qualified}"):
            blame = (space.cluster.explain if space.cluster else partial(blame_shard, space))(shard)
        text = "\n".join(lines(blame, on_device=space.backend.name == "coreml"))
        findings, found = (*verdict.findings, cause(blame)), (*verdict.tables, *tables(blame))
        return text, replace(verdict, findings=findings, tables=found)
    except AneError as error:
        return f"cause not found: {error}", verdict
    # The verdict stands, whatever goes wrong here.
    except Exception as error:
        why = printable(repr(error))
        return f"internal error while searching the cause (please report): {why}", verdict
