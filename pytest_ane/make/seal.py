"""Seals of cache entries: which entry it is, and the SHA-256 of each of its files.

A seal shows damage and edits, such as a flipped byte or a file of another entry. It is no
signature: an edit of a file and of its digest in the seal alike goes unnoticed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.strict_json import parse_json
from pytest_ane.mlprogram.text import printable

SEAL = "seal.json"
_FINDER = ".DS_Store"
"""What macOS adds to a folder that someone looks at; inside a package it would count."""


def write_seal(folder: Path, kind: str, key: str) -> None:
    """Seal a finished entry in the folder where it was made."""
    files = {name: file_digest(folder / name) for name in sorted(names_in(folder))}
    text = json.dumps({"kind": kind, "key": key, "files": files}, indent=1)
    (folder / SEAL).write_text(text)


def damage(entry: Path, name: tuple[str, str] | None = None) -> str:
    """How an entry differs from its seal, `FILE has other bytes`; else empty.

    Files that did not change are not read again within `remembered`.

    Args:
        entry: its folder.
        name: its kind and key, where the folder is not `<kind>/<key>`.

    Raises:
        OSError: it cannot be read.
    """
    try:
        seal = parse_json((entry / SEAL).read_text(encoding="utf-8"))
        sealed = seal["files"]
        of = seal["kind"], seal["key"]
    except FileNotFoundError:
        return f"{SEAL} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{SEAL} is damaged"
    if not isinstance(sealed, dict):
        return f"{SEAL} is damaged"
    if of != (name or (entry.parent.name, entry.name)):
        return f"{SEAL} is of another entry"
    return next(_differences(entry, sealed), "")


def _differences(entry: Path, sealed: dict[str, Any]) -> Iterator[str]:
    present = set(names_in(entry))
    for name in sorted(sealed.keys() | present):
        shown = printable(name)
        if name not in present:
            yield f"{shown} is missing"
        elif name not in sealed:
            yield f"{shown} was added"
        elif not stat.S_ISREG((entry / name).lstat().st_mode):
            yield f"{shown} is no regular file"
        elif file_digest(entry / name) != sealed[name]:
            yield f"{shown} has other bytes"


def names_in(entry: Path) -> Iterator[str]:
    """What a seal lists: all in an entry but folders and the seal, as relative POSIX paths."""
    for folder, folders, files in os.walk(entry, onerror=_raise):
        here = Path(folder)
        for name in (*files, *(n for n in folders if (here / n).is_symlink())):
            if here != entry or name not in (SEAL, _FINDER):
                yield (here / name).relative_to(entry).as_posix()


def _raise(error: OSError) -> None:
    raise error
