"""`pytest-ane cache`: list, prune or share built shards and recordings."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pytest_ane.cli.options import add_shared, size
from pytest_ane.cli.output import Output, confirmed
from pytest_ane.make import BuildRecord, Cache
from pytest_ane.make.cache import Entry, to_stderr
from pytest_ane.make.shared_store import KINDS, SharedStore
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.probes.recording import read_metadata

EXAMPLE = "pytest-ane cache prune --keep '2 GB'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The action, the folder, and how much `prune` keeps."""
    words = "show entries, delete old ones, or give those that a store lacks to it"
    parser.add_argument("action", choices=("list", "prune", "push"), help=words)
    add_shared(parser, "cache")
    words = "prune: keep the most recently used up to this, such as '2 GB'"
    parser.add_argument("--keep", type=size, default=0, metavar="SIZE", help=words)
    words = "push: the store that machines share, such as s3://bucket/ane or a folder"
    parser.add_argument("--store", "--ane-store", metavar="URL", help=words)
    parser.add_argument("--yes", action="store_true", help="prune: delete without a question")


def run(options: argparse.Namespace) -> Output:
    """List entries, least recently used first; delete those beyond `keep`; or push them."""
    if options.action == "push":
        return (yield from _push(options))
    cache = Cache(options.cache)
    if options.action == "prune":
        return (yield from _prune(cache, options))
    entries = cache.entries()
    yield from map(_line, entries)
    yield f"{len(entries)} entries, {_megabytes(entries)} in {cache.root}"
    return {"root": cache.root, "entries": _data(entries)}


def _push(options: argparse.Namespace) -> Output:
    if not options.store:
        raise CacheError("cache push needs --store=URL, such as s3://bucket/ane or a folder.")
    store = SharedStore(options.store, to_stderr)
    if not store.is_writable:
        raise CacheError(f"The store {store.name} can only be read; push from where it lies.")
    cache = Cache(options.cache, store=store)
    entries = [entry for entry in cache.entries() if entry.kind in KINDS]
    stored = [entry for entry in entries if cache.push(entry)]
    yield f"{len(stored)} of {len(entries)} entries are in the store {store.name}"
    if len(stored) < len(entries):
        left = len(entries) - len(stored)
        raise CacheError(f"{left} of {len(entries)} entries are not stored, as said above.")
    return {"root": cache.root, "store": store.name, "entries": _data(stored)}


def _prune(cache: Cache, options: argparse.Namespace) -> Output:
    entries, doomed = cache.entries(), cache.surplus(options.keep)
    yield from map(_line, doomed)
    if sum(e.size for e in entries) - sum(e.size for e in doomed) > options.keep:
        used = [entry for entry in entries if entry.used >= cache.in_use_since()]
        yield f"kept: {_megabytes(used)} that a running process may use"
    of, data = f"of {len(entries)} entries", {"root": cache.root, "chosen": _data(doomed)}
    if doomed and not confirmed(f"Delete {len(doomed)} {of}?", options):
        yield (
            f"{len(doomed)} {of}, {_megabytes(doomed)}, would be deleted; nothing was: "
            "pytest-ane cache prune --yes deletes them"
        )
        return {**data, "removed": 0}
    cache.sweep()
    try:
        removed = [entry for entry in doomed if cache.remove(entry)]
    except OSError as error:
        raise CacheError(f"{error.filename} cannot be removed: {error.strerror}.") from None
    kept = [entry for entry in entries if entry not in removed]
    yield f"{len(removed)} {of} removed, {_megabytes(kept)} kept in {cache.root}"
    return {**data, "removed": len(removed)}


def _line(entry: Entry) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    size = f"{entry.size / 1e6:8.2f} MB"
    return f"{entry.kind:<10} {entry.key[:16]}  {size}  used {used}  {_shard(entry)}".rstrip()


def _data(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    return [
        {"kind": e.kind, "key": e.key, "shard": _shard(e) or None, "bytes": e.size, "used": e.used}
        for e in entries
    ]


def _shard(entry: Entry) -> str:
    with suppress(CacheError):
        if entry.kind == "artifacts":
            return BuildRecord.read(entry.path).shard
        if entry.kind == "recordings":
            return str(read_metadata(entry.path).get("shard", ""))
    return ""


def _megabytes(entries: list[Entry]) -> str:
    return f"{sum(entry.size for entry in entries) / 1e6:.1f} MB"
