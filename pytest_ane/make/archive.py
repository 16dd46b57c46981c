"""A cache entry as one file: the seal first, then the other files by name, of equal entries equal.

Archives come from other machines. Whatever is in one, only plain files below the entry's folder
are written; who unpacks one compares it with its seal before anything reads it.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pytest_ane.make.seal import SEAL, names_in
from pytest_ane.mlprogram.text import printable

MOST_SEAL = 16 << 20
"""Bytes of a seal: of 100,000 files."""
_SAID = 200
"""Characters of what a library says of an error."""


def pack(entry: Path, archive: BinaryIO) -> None:
    """Write an entry's archive, its seal first; of equal entries it has equal bytes."""
    names = [SEAL, *sorted(names_in(entry))]
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = (entry / name).stat().st_size
            with (entry / name).open("rb") as file:
                tar.addfile(info, file)


def unpacked(archive: BinaryIO, entry: Path) -> str:
    """Unpack an archive into an empty folder; why that could not be done, else empty.

    Raises:
        OSError: the disk is full or fails.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                outside = path.is_absolute() or {"..", "."} & {*path.parts}
                if not member.isreg() or member.issparse() or outside:
                    return f"{printable(member.name, _SAID)} is no file of an entry"
                file = tar.extractfile(member)
                target = entry / path
                target.parent.mkdir(parents=True, exist_ok=True)
                assert file is not None
                with target.open("xb") as new:
                    shutil.copyfileobj(file, new, 1 << 20)
    except (tarfile.TarError, EOFError, ValueError) as error:
        return f"it is no whole archive ({printable(str(error), _SAID)})"
    except OSError as error:
        # `unexpected end of data` has no number; a name that is there twice, or is also a folder.
        if error.errno not in (None, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):
            raise
        return f"it is no whole archive ({printable(str(error), _SAID)})"
    return ""


def head_of(archive: Path) -> bytes:
    """The beginning of an archive that `pack` wrote, up to the end of its seal."""
    with tarfile.open(archive, "r:") as tar:
        seal = tar.next()
    assert seal is not None
    with archive.open("rb") as file:
        return file.read(tarfile.BLOCKSIZE + seal.size)


def sealed(head: bytes) -> dict[str, str] | None:
    """Digests by file, of the beginning of an archive; None where it holds no whole seal."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as tar:
            first = tar.next()
            file = tar.extractfile(first) if first else None
            return dict(json.loads(file.read(MOST_SEAL))["files"]) if file else None
    except (tarfile.TarError, ValueError, KeyError, TypeError, OSError):
        return None
