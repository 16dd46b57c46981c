"""The order of runs: git's history where it knows their commits, else time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from pytest_ane.records.git import git

_ID = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True)
class Run:
    """A run of pytest at one commit.

    Attributes:
        id: in hexadecimal digits.
        commit: full id; empty outside of git.
        clean: whether the checkout was that commit.
        time: of its first line, UTC: `2026-11-21 10:00:00`.
        lines: how many it has.
        known: whether git knows the commit, so that its history gives the place.
    """

    id: str
    commit: str
    clean: bool
    time: str
    lines: int
    known: bool = False

    @property
    def label(self) -> str:
        """`1a2b3c4d5`, with a `+` where files were changed; the run's id outside of git."""
        if not self.commit:
            return f"run {self.id[:8]}"
        return f"{self.commit[:9]}{'' if self.clean else '+'}"


class Commits:
    """What git knows of commits.

    Args:
        folder: in the checkout, if there is one.
        ids: full ids; what is none is known to nobody.
    """

    def __init__(self, folder: Path, ids: Sequence[str]) -> None:
        self._folder = folder
        self._ids = sorted(commit for commit in ids if _ID.fullmatch(commit))

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each commit that git knows: parents come first."""
        if not self._ids:
            return {}
        listed = git(
            self._folder, "cat-file", "--batch-check=%(objectname) %(objecttype)",
            given="\n".join(self._ids),
        )  # fmt: skip
        lines = (line.split() for line in listed.splitlines())
        known = {commit for commit, kind in lines if kind == "commit"}
        if not known:
            return {}
        all_ = git(
            self._folder, "rev-list", "--topo-order", "--reverse", "--stdin",
            given="\n".join(sorted(known)),
        )  # fmt: skip
        in_order = [commit for commit in all_.split() if commit in known]
        return {commit: place for place, commit in enumerate(in_order)}

    @cached_property
    def titles(self) -> dict[str, str]:
        """The first line of each commit's message."""
        if not self.places:
            return {}
        shown = git(
            self._folder, "log", "--no-walk=unsorted", "--format=%H %s", "--stdin",
            given="\n".join(self.places),
        )  # fmt: skip
        return {id_: title for id_, _, title in (x.partition(" ") for x in shown.splitlines())}

    def find(self, name: str) -> str:
        """The commit of a branch, a tag or another name that git knows; empty for none."""
        if not name or name.startswith("-"):
            return ""
        return git(
            self._folder, "rev-parse", "--verify", "--quiet", "--end-of-options",
            f"{name}^{{commit}}",
        ).strip()  # fmt: skip


def ordered(runs: Sequence[Run], commits: Commits) -> tuple[Run, ...]:
    """Runs in order.

    A run of a commit that git does not know stands after those known ones that are older, and
    before the first one that is younger.

    Args:
        runs: by time.
        commits: of all of them.
    """
    places = commits.places
    known = sorted((r for r in runs if r.commit in places), key=lambda r: places[r.commit])
    latest = [*accumulate((run.time for run in known), max)]
    keyed = [((i + 1, 0), replace(run, known=True)) for i, run in enumerate(known)]
    others = (run for run in runs if run.commit not in places)
    keyed += [((bisect_right(latest, run.time), i + 1), run) for i, run in enumerate(others)]
    return tuple(run for _, run in sorted(keyed, key=lambda pair: pair[0]))
