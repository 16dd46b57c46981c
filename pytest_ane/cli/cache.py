"""`pytest-ane cache list` and `prune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ane.cli.confirm import confirmed
from pytest_ane.core.errors import CacheError

if TYPE_CHECKING:
    from pytest_ane.build import Cache
    from pytest_ane.build.cache import Entry


def run(action: str, root: Path | None, keep: str, yes: bool) -> Iterator[str]:
    """List entries, least recently used first; or delete those beyond the budget `keep`.

    Args:
        action: `list` or `prune`.
        root: the cache folder; default the user's own.
        keep: for `prune`, a size such as `2 GB`.
        yes: for `prune`, delete without a question.

    Raises:
        CacheError: the folder is no cache or cannot be read, or `keep` is no size.
    """
    from pytest_ane.build import Cache

    cache = Cache(root)
    if action == "prune":
        yield from _prune(cache, _bytes(keep), yes)
        return
    entries = cache.entries()
    yield from map(_line, entries)
    yield f"{len(entries)} entries, {_megabytes(entries)} in {cache.root}"


def _prune(cache: Cache, budget: int, yes: bool) -> Iterator[str]:
    entries = cache.entries()
    since = cache.in_use_since()
    held, doomed = sum(entry.size for entry in entries), []
    for entry in entries:
        if held > budget and entry.used < since:
            doomed.append(entry)
            held -= entry.size
    yield from map(_line, doomed)
    if held > budget:
        used = [entry for entry in entries if entry.used >= since]
        yield f"kept: {_megabytes(used)} that a running process may use"
    of = f"of {len(entries)} entries"
    if doomed and not confirmed(f"Delete {len(doomed)} {of}?", yes):
        yield (
            f"{len(doomed)} {of}, {_megabytes(doomed)}, would be deleted; nothing was: "
            "pytest-ane cache prune --yes deletes them"
        )
        return
    cache.sweep()
    try:
        removed = [entry for entry in doomed if cache.remove(entry)]
    except OSError as error:
        raise CacheError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    kept = [entry for entry in entries if entry not in removed]
    yield f"{len(removed)} {of} removed, {_megabytes(kept)} kept in {cache.root}"


def _line(entry: Entry) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    return f"{entry.kind:<10} {entry.key[:16]}  {entry.size / 1e6:8.2f} MB  used {used}"


def _megabytes(entries: list[Entry]) -> str:
    return f"{sum(entry.size for entry in entries) / 1e6:.1f} MB"


def _bytes(text: str) -> int:
    from pytest_ane.manifest.policy import size

    try:
        value = size(text) if not text.isdecimal() else int(text)
    except ValueError as error:
        raise CacheError(f"--keep={text}: {error}.") from None
    assert isinstance(value, int)
    return value
