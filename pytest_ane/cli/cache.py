"""`pytest-ane cache list` and `prune`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pytest_ane.core.errors import CacheError


def run(action: str, root: Path | None, keep: str) -> Iterator[str]:
    """List entries, least recently used first; or delete those beyond the budget `keep`.

    Raises:
        CacheError: the folder cannot be read, or `keep` is no size.
    """
    from pytest_ane.build import Cache

    cache = Cache(root)
    entries = cache.entries()
    if action == "list":
        for entry in entries:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            yield f"{entry.kind:<10} {entry.key[:16]}  {entry.size / 1e6:8.2f} MB  used {used}"
        yield f"{len(entries)} entries, {sum(e.size for e in entries) / 1e6:.1f} MB in {cache.root}"
        return
    cache.sweep()
    budget = _bytes(keep)
    held = sum(entry.size for entry in entries)
    removed = 0
    for entry in entries:
        if held <= budget:
            break
        cache.remove(entry)
        held -= entry.size
        removed += 1
    yield f"{removed} of {len(entries)} entries removed, {held / 1e6:.1f} MB kept in {cache.root}"


def _bytes(text: str) -> int:
    from pytest_ane.manifest.policy import size

    try:
        value = size(text) if not text.isdecimal() else int(text)
    except ValueError as error:
        raise CacheError(f"--keep={text}: {error}.") from None
    assert isinstance(value, int)
    return value
