"""The store that machines share: whole cache entries, and evidence, wherever fsspec reaches.

An entry `<kind>/<key>` of the cache is the file `<kind>/<key>.tar` below the store's URL: the seal
first, then the other files by name, without times and owners, so that equal entries are equal
bytes. An archive is unpacked beside the cache and compared with its seal before anything reads it.
Archives come from other machines: whatever is in one, only plain files below the entry's folder are
written. A file appears under its name in one step, and the first writer of a name wins. What the
store does not give, or gives with other bytes, is made here: a store never makes a run fail.

A seal says which entry it is, and the SHA-256 of each of its files. It shows damage and is no
signature: an edit of a file and of its digest in the seal alike goes unnoticed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tarfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pytest_ane.mlprogram.digests import file_digest
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.mlprogram.strict_json import parse_json
from pytest_ane.mlprogram.text import printable

SEAL = "seal.json"
_MOST_FILES = 4096
"""Of an entry, which has some twenty."""
_FINDER = ".DS_Store"
"""What macOS adds to a folder that someone looks at; inside a package it would count."""


def write_seal(folder: Path, kind: str, key: str) -> None:
    """Seal a finished entry in the folder where it was made."""
    files = {name: file_digest(folder / name) for name in sorted(names_in(folder))}
    text = json.dumps({"kind": kind, "key": key, "files": files}, indent=1)
    (folder / SEAL).write_text(text)


def damage(entry: Path, name: tuple[str, str] | None = None) -> str:
    """How an entry differs from its seal, `FILE has other bytes`; else empty.

    Files that did not change are not read again within `remembered`. `name` is the entry's kind and
    key, where the folder is not `<kind>/<key>`.
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
    """Unpack an archive into an empty folder; why that could not be done, else empty."""
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            for number, member in enumerate(tar):
                if number == _MOST_FILES:
                    return f"it has more than {_MOST_FILES:,} files"
                if not member.isreg() or member.issparse():
                    return f"{printable(member.name, _SAID)} is no file of an entry"
                tar.extract(member, entry, filter="data")
    except (tarfile.TarError, EOFError, ValueError) as error:
        return f"it is no whole archive ({printable(str(error), _SAID)})"
    except OSError as error:
        # `unexpected end of data` has no number; a name may also be one of a folder.
        if error.errno not in (None, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EINVAL):
            raise
        return f"it is no whole archive ({printable(str(error), _SAID)})"
    return ""


KINDS = ("artifacts", "budgets", "recordings")
"""Kinds of entries that any machine can use; compiled models are of one Mac."""
_READ_ONLY = ("http", "https")
_OBJECTS = ("abfs", "az", "gcs", "gs", "hf", "s3", "s3a")
"""Protocols whose files appear whole, or not at all."""
_EXTRAS = {"s3": "s3", "s3a": "s3", "http": "http", "https": "http"}
"""Extras of pytest-ane that have what a protocol needs."""
_MOST_FAILURES = 3
"""In a row; then the store is not asked again, since each may take as long as its timeout."""
_MOST_BYTES = 1 << 36
"""Of an archive whose size nobody tells."""
_LOOK, _PATIENCE = 0.05, 60.0
"""Seconds between two looks at a download, and how long it may bring nothing."""
_SAID = 200
"""Characters of what a library says of an error."""


class SharedStore:
    """Entries and small files below a URL, such as `s3://bucket/ane` or `/mnt/ane`.

    `notify` receives a sentence on each file that is damaged or cannot be had, `counts` how many
    entries were `fetched` and `stored`. `name` is the URL without credentials. Web servers, and
    whoever refuses it once, are not `is_writable`. `CacheError` is as of `check_url`.
    """

    def __init__(
        self, url: str, notify: Callable[[str], None], counts: Counter[str] | None = None
    ) -> None:
        self.url, self.notify = url, notify
        self.counts = Counter[str]() if counts is None else counts
        self.name = without_credentials(url)
        self.is_writable = _protocol(url) not in _READ_ONLY
        self._failures = 0
        self._damaged: set[str] = set()
        check_url(url)

    def fetch(self, kind: str, key: str, folder: Path, subject: str = "") -> Path | None:
        """An entry, unpacked into an empty folder and compared with its seal; None without any.

        `subject` is whose it is, for messages. `OSError` where the disk of the folder fails.
        """
        archive, entry = folder / "archive.tar", folder / "entry"
        name = _name(kind, key)
        if self._asked:
            with self._reading():
                self._download(self._path(name), archive)
        if not archive.is_file():
            return None
        entry.mkdir()
        with archive.open("rb") as file:
            wrong = unpacked(file, entry) or damage(entry, (kind, key))
        archive.unlink()
        if not wrong:
            self.counts["fetched"] += 1
            return entry
        self._damaged.add(name)
        shutil.rmtree(entry, ignore_errors=True)
        whose = f"{subject}: {_short(name)}" if subject else _short(name)
        self.notify(f"{whose} in the store {self.name} is damaged: {wrong}; it is not used.")
        return None

    def offer(self, entry: Path, folder: Path) -> bool:
        """Store a sealed entry that the store lacks, packed in an empty folder, if it can be."""
        name, archive = _name(entry.parent.name, entry.name), folder / "archive.tar"
        if not self.is_writable or not self._asked:
            return False
        with self._writing(name):
            with archive.open("wb") as file:
                pack(entry, file)
            replace = name in self._damaged
            if replace or not self._files.exists(self._path(name)):
                self.counts["stored"] += self._put(archive, name, replace=replace)
            return True
        return False

    def read(self, name: str, most: int) -> bytes | None:
        """The first `most` bytes of a small file; None where there is none, or it cannot be had."""
        if not self._asked:
            return None
        with self._reading():
            return bytes(self._files.cat_file(self._path(name), start=0, end=most))
        return None

    def write(self, name: str, file: Path) -> None:
        """Store a small file in place of an older one."""
        if self.is_writable and self._asked:
            with self._writing(name):
                self._put(file, name, replace=True)

    def _download(self, path: str, archive: Path) -> None:
        """Copy a file, of which no more is taken than was told, as long as something comes.

        What reads is a thread of its own, for libraries may wait without an end.
        """
        from fsspec.callbacks import Callback

        ended, wrong = threading.Event(), list[Exception]()

        class Watch(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                self.value += inc
                if ended.is_set() or self.value > (most := self.size or _MOST_BYTES):
                    raise OSError(f"{_short(path)} has more than the {most:,} bytes told")

        watch = Watch()

        def copy() -> None:
            try:
                self._files.get_file(path, str(archive), callback=watch)
            except Exception as error:
                wrong.append(error)
            ended.set()

        threading.Thread(target=copy, daemon=True).start()
        done, since = 0, time.monotonic()
        while not ended.wait(_LOOK):
            # What copies a folder's file tells nothing meanwhile.
            come = max(watch.value, archive.stat().st_size if archive.exists() else 0)
            if come > done:
                done, since = come, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                ended.set()
                wrong.append(TimeoutError(f"nothing came for {_PATIENCE:.0f} s"))
        if wrong:
            archive.unlink(missing_ok=True)
            raise wrong[0]

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """The file system, and the path in it; some connect at once, which can fail."""
        import fsspec

        files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return files, str(root).rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _asked(self) -> bool:
        return self._failures < _MOST_FAILURES

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Nothing is raised but errors of this machine's disk; what fails is said."""
        try:
            yield
            self._failures = 0
        except FileNotFoundError:
            self._failures = 0
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # It is this machine's disk.
            self._failures += 1
            rest = "" if self._asked else "; it is not asked again"
            self.notify(f"The store {self.name} cannot be read ({self._said(error)}){rest}.")

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failures += 1
            denied = isinstance(error, PermissionError | NotImplementedError)
            self.is_writable = self.is_writable and not denied
            rest = "it is only read" if denied else f"{_short(name)} is kept here alone"
            self.notify(f"The store {self.name} cannot be written ({self._said(error)}); {rest}.")
        else:
            self._failures = 0

    def _said(self, error: Exception) -> str:
        said = (isinstance(error, OSError) and error.strerror) or str(error)
        first = next(iter(str(said).strip().splitlines()), "")
        for secret in _secrets(self.url):
            first = first.replace(secret, "***")
        return printable(first.rstrip(".") or type(error).__name__, _SAID)

    def _put(self, file: Path, name: str, *, replace: bool = False) -> bool:
        """Store a file in one step; whether it was, and no other lay there."""
        target = self._path(name)
        if _protocol(self.url) in _OBJECTS:
            try:
                self._files.put_file(str(file), target, mode="overwrite" if replace else "create")
            except FileExistsError:
                return False
        else:
            part = f"{target}.{uuid.uuid4().hex}.part"
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                self._files.put_file(str(file), part)
                if not replace and self._files.exists(target):
                    return False
                self._files.mv(part, target)
            finally:
                with suppress(Exception):
                    if self._files.exists(part):
                        self._files.rm_file(part)
        self._damaged.discard(name)
        return True


def _name(kind: str, key: str) -> str:
    return f"{kind}/{key}.tar"


def _short(name: str) -> str:
    return name.removesuffix(".tar")[:32]


def _protocol(url: str) -> str:
    return url.partition("://")[0] if "://" in url else "file"


def check_url(url: str) -> None:
    """`CacheError` where a URL cannot name a store, or lacks a library; nothing is connected."""
    import fsspec

    protocol, name = _protocol(url), without_credentials(url)
    if protocol in _READ_ONLY and urlsplit(url).query:
        raise CacheError(f"The store {name} has a query, which no folder has; leave it out.")
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        how = f"run: pip install 'pytest-ane[{extra}]'" if extra else str(error).rstrip(".")
        raise CacheError(f"The store {name} needs another library; {how}.") from None
    except ValueError as error:
        raise CacheError(f"The store {name} is no URL that fsspec knows ({error}).") from None


def without_credentials(url: str) -> str:
    """A URL as messages have it."""
    for secret in _secrets(url):
        url = url.replace(f"{secret}@", "").replace(f"?{secret}", "").replace(f"#{secret}", "")
    return printable(url, _SAID)


def _secrets(url: str) -> list[str]:
    """What may be secret of a URL: user and password, query, fragment; the longest first."""
    if "://" not in url:
        return []
    parts = urlsplit(url)
    known = parts.netloc.rpartition("@")[0], parts.password or "", parts.query, parts.fragment
    texts = {text for each in known for text in (each, unquote(each))}
    return sorted(filter(None, texts), key=len, reverse=True)
