"""Cache entries on their way from one machine to another."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pytest_ane.make import Cache
from pytest_ane.make.shared_store import KINDS, damage, pack, unpacked
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import CacheError


class Name(NamedTuple):
    """A cache entry's kind and key."""

    kind: str
    key: str


class Parcel:
    """Entries by name: in a cache folder, or as archives where they come from another machine.

    It is pickled when a task runs elsewhere than where the entries lie, and only then are they
    read. Dask takes their size, in bytes, into account where it chooses a task's worker.
    """

    def __init__(
        self, names: Sequence[Name], size: int, root: Path | None = None,
        archives: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        self.names, self.size = tuple(names), size
        self._root, self._archives = root, tuple(archives)

    @classmethod
    def of(cls, cache: Cache, paths: Iterable[Path]) -> Parcel:
        """Those of a cache's entries that any machine can use under the same name."""
        names = sorted(Name(path.parent.name, path.name) for path in paths)
        names = [n for n in names if n.kind in KINDS and re.fullmatch(r"[0-9a-f]{64}", n.key)]
        return cls(names, sum(tree_bytes(cache.path(*name)) for name in names), cache.root)

    def settle(self, cache: Cache) -> None:
        """Put what came from another machine into a cache; `CacheError` unless it is whole."""
        if self._root is None:
            for name, archive in zip(self.names, self._archives, strict=True):
                cache.get_or_make(*name, partial(_unpack, name, archive), shared=False)
        self._root, self._archives = cache.root, ()

    def __sizeof__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[Any, ...]:
        archives = self._archives
        if (root := self._root) is not None:
            archives = tuple(_archive(root / name.kind / name.key) for name in self.names)
        return Parcel, (self.names, self.size, None, archives)


def _archive(entry: Path) -> bytes:
    """Empty for an entry that is gone, which is said where it arrives."""
    file = io.BytesIO()
    try:
        pack(entry, file)
    except OSError:
        return b""
    return file.getvalue()


def _unpack(name: Name, archive: bytes, folder: Path) -> None:
    if not archive:
        raise CacheError(f"{name.kind}/{name.key[:16]} is gone from the worker that made it.")
    wrong = unpacked(io.BytesIO(archive), folder) or damage(folder, name)
    if wrong:
        raise CacheError(f"{name.kind}/{name.key[:16]} did not arrive whole: {wrong}.")
