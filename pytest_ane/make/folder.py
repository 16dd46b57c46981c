"""What makes a folder a cache of pytest-ane, and the form of every name that is made in it.

A cache is recognised by its tag, a CACHEDIR.TAG (https://bford.info/cachedir/), which backups heed
too. Only names of these forms are ever deleted, so that whatever else lies there stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pytest_ane.manifest.ids import MODEL
from pytest_ane.mlprogram.errors import CacheError

KINDS = ("artifacts", "budgets", "compiled", "recordings")
TAG = "CACHEDIR.TAG"
TAG_TEXT = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by pytest-ane, which deletes old entries beside it.
# For information about cache directory tags see https://bford.info/cachedir/
"""

KEY = r"[0-9a-f]{64}(?:-[0-9]+)?(?:-u[0-9]+)?"
"""A digest; for compiled models also the number of the attempt; then a user's number, where the
entry without it is another user's."""
ENTRY = rf"(?:{'|'.join(KINDS)})-{KEY}"
RUN = r"run-[0-9a-f]{32}"
USER = r"use-(?P<start>[0-9]+)-[0-9]+"
"""A process that uses entries, by the time when it began, in ns of the epoch, and its number."""

_FORMS = {
    **{kind: re.compile(KEY) for kind in KINDS},
    "digests": re.compile(r"files\.(?:jsonl|[0-9]+)|[0-9a-f]{64}\.lock"),
    "locks": re.compile(rf"(?:{ENTRY}|{RUN}|{USER}|slot-[0-9]+)\.lock"),
    "recommend": re.compile(rf"{MODEL}\.jsonl"),
    "tmp": re.compile(rf"{ENTRY}(?:\.removed-[0-9]+)?|{RUN}|\.write-[0-9]+"),
}


def own(root: Path, name: str) -> Iterator[Path]:
    """What was made in a folder of the cache; links are not, and none is followed."""
    folder = root / name
    if folder.is_dir() and not folder.is_symlink():
        for path in folder.iterdir():
            if _FORMS[name].fullmatch(path.name) and not path.is_symlink():
                yield path


def is_tagged(root: Path) -> bool:
    """Whether a folder has the tag of a cache of pytest-ane."""
    tag = root / TAG
    try:
        return not tag.is_symlink() and tag.read_bytes() == TAG_TEXT.encode()
    except OSError:
        return False


def require_cache(root: Path) -> None:
    """Refuse a folder of someone else's before anything is written to it.

    A folder without the tag may be used if it is empty, or missing; or if every name in it is of
    our form and every entry has its lock, as in a cache whose first use has not ended.

    Raises:
        CacheError: the folder holds anything else.
    """
    try:
        foreign = None if is_tagged(root) else next(_foreign(root), None)
    except OSError:
        return  # Whoever opens it says what is wrong.
    # Another process may have written the tag meanwhile.
    if foreign is not None and not is_tagged(root):
        raise CacheError(
            f"{root} is no cache folder of pytest-ane: it holds {foreign} and no {TAG} of "
            "pytest-ane; name a new or empty folder with --ane-cache=DIR."
        )


def _foreign(root: Path) -> Iterator[str]:
    """Names in a folder without the tag that are not ours."""
    for folder in sorted(root.iterdir()):
        if folder.name not in _FORMS or folder.is_symlink() or not folder.is_dir():
            yield folder.name
            continue
        ours = set(own(root, folder.name))
        for path in folder.iterdir():
            lock = root / "locks" / f"{folder.name}-{path.name}.lock"
            if path not in ours or (folder.name in KINDS and not lock.is_file()):
                yield f"{folder.name}/{path.name}"
