"""Where builds write: the cache's folder, temporary files, and how much room and memory they need.

A cache is recognised by its tag, a CACHEDIR.TAG (https://bford.info/cachedir/), which backups heed
too. Only names of the forms here are ever deleted, so that whatever else lies there stays.

Temporary files of a build are in a folder of their own that goes when the build ends: coremltools
deletes what it wrote into the temporary folder only when the interpreter exits.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from filelock import FileLock, Timeout

from pytest_ane.manifest import Linear, Palettize, Shard
from pytest_ane.manifest.ids import MODEL
from pytest_ane.mlprogram.digests import tree_bytes
from pytest_ane.mlprogram.errors import CacheError
from pytest_ane.mlprogram.memory import available_memory

_LOOSE = 2
"""A budget is what a package may have, and a median may be another kind's, a block's or a head's:
a disk is too small that does not hold half."""
_PATTERN = "*/com.apple.e5rt.e5bundlecache/*"


@dataclass(frozen=True)
class Estimate:
    """Bytes of the `count` packages still to be built; the total is None where one is unknown.

    `largest` are the temporary files of the largest, which is written uncompressed and compressed;
    `least` what they take at the very least.
    """

    count: int
    total: int | None = 0
    largest: int = 0
    least: int = 0


@dataclass(frozen=True)
class Volume:
    """A volume, the folders on it in words, and bytes: needed (None: unknown), at least, free."""

    folders: str
    needed: int | None
    least: int
    free: int

    @property
    def too_small(self) -> bool:
        """Whether not even the least will fit."""
        return self.least > self.free

    def __str__(self) -> str:
        known = f"about {amount(self.needed)} needed, " if self.needed is not None else ""
        least = f"at least {amount(self.least)} needed, " if self.least else ""
        return f"{self.folders}: {known or least}{amount(self.free)} free"


def estimate(groups: Iterable[tuple[Sequence[Shard], Sequence[int]]]) -> Estimate:
    """Bytes that each model's missing packages will take, by those of its finished ones."""
    sizes, largest = list[int | None](), 0
    for missing, finished in groups:
        # The median, for a head is many times a block.
        typical = [int(median(finished))] if finished else []
        for shard in missing:
            most = shard.policy.compression.max_bytes
            size = min([*typical, *([] if most is None else [most])], default=None)
            sizes.append(size)
            way = shard.requested
            # fp16 over what is compressed, about.
            ratio = 16 / way.nbits if isinstance(way, Palettize | Linear) else 1
            largest = max(largest, int((size or 0) * (1 + ratio)))
    known = [size for size in sizes if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    return Estimate(len(sizes), total, largest, sum(size // _LOOSE for size in known))


def volumes(cache: Path, temporary: Path, needs: Estimate, builds: int) -> tuple[Volume, ...]:
    """The one or two volumes that builds write to; `builds` of them run at once."""
    at_once = min(builds, needs.count) * needs.largest
    known = needs.total is not None
    free, room = shutil.disk_usage(cache).free, shutil.disk_usage(temporary).free
    if cache.stat().st_dev == temporary.stat().st_dev:
        both = (needs.total or 0) + at_once if known else None
        names = f"cache {cache} and temporary files {temporary}"
        return (Volume(names, both, needs.least, free),)
    return (
        Volume(f"cache {cache}", needs.total, needs.least, free),
        Volume(f"temporary files {temporary}", at_once if known else None, 0, room),
    )


def amount(size: int) -> str:
    """`86.0 GB`, or `3.1 MB` below a tenth of one."""
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"


@dataclass(frozen=True)
class PlanCache:
    """Plans for one build of macOS: their folder, its bytes, whether that build no longer runs."""

    path: Path
    size: int
    stale: bool


def plan_caches() -> list[PlanCache]:
    """All caches of compiled plans, largest first; none on other systems.

    Core ML keeps plans in `~/Library/Caches/<application>/com.apple.e5rt.e5bundlecache/<build>`,
    one folder for each build of macOS, and never uses those of another build again.
    """
    if sys.platform != "darwin":
        return []
    said = subprocess.run(
        ["/usr/bin/sw_vers", "-buildVersion"], capture_output=True, text=True, check=False
    )
    plans, build = [], said.stdout.strip()
    for path in filter(Path.is_dir, (Path.home() / "Library" / "Caches").glob(_PATTERN)):
        try:
            plans.append(PlanCache(path, tree_bytes(path), path.name != build))
        except OSError:  # Core ML is at work in it, or it is not ours to read.
            continue
    return sorted(plans, key=lambda cache: -cache.size)


KINDS = ("artifacts", "budgets", "compiled", "recordings")
TAG = "CACHEDIR.TAG"
TAG_TEXT = """\
Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by pytest-ane, which deletes old entries beside it.
# For information about cache directory tags see https://bford.info/cachedir/
"""

KEY = r"[0-9a-f]{64}(?:-[0-9]+)?"
"""A digest; for compiled models also the number of the attempt."""
ENTRY = rf"(?:{'|'.join(KINDS)})-{KEY}"
RUN = r"run-[0-9a-f]{32}"
USER = r"use-(?P<start>[0-9]+)-[0-9]+"
"""A process that uses entries, by the time when it began, in ns of the epoch, and its number."""

_FORMS = {
    **{kind: re.compile(KEY) for kind in KINDS},
    "digests": re.compile(r"files\.(?:jsonl|[0-9]+)|[0-9a-f]{64}\.lock"),
    "locks": re.compile(rf"(?:{ENTRY}|{RUN}|{USER}|slot-[0-9]+)\.lock"),
    "recommend": re.compile(rf"{MODEL}\.jsonl"),
    "tokens": re.compile(rf"{KEY}\.jsonl"),
    "tmp": re.compile(rf"{ENTRY}(?:\.removed-[0-9]+)?|{RUN}|\.write-[0-9]+"),
}


def own_paths(root: Path, name: str) -> Iterator[Path]:
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
    """Refuse a folder of someone else's with a `CacheError` before anything is written to it.

    A folder without the tag may be used if it is empty, or missing; or if every name in it is of
    our form and every entry has its lock, as in a cache whose first use has not ended.
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
        ours = set(own_paths(root, folder.name))
        for path in folder.iterdir():
            lock = root / "locks" / f"{folder.name}-{path.name}.lock"
            if path not in ours or (folder.name in KINDS and not lock.is_file()):
                yield f"{folder.name}/{path.name}"


_around: list[Path] = []
"""What was the temporary folder before each scratch folder that is in use."""


@contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Let temporary files of this process, and of those it starts, be made in a folder."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable


@contextmanager
def scratch(name: str) -> Iterator[None]:
    """A fresh folder for temporary files; what a killed process left under the name goes first."""
    for left in leftovers(re.escape(name)):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    _around.append(folder.parent)
    try:
        with temporary_files_in(folder):
            yield
    finally:
        _around.pop()
        shutil.rmtree(folder, ignore_errors=True)


def temporary_folder() -> Path:
    """The folder for temporary files, outside of every build's own."""
    return _around[0] if _around else Path(tempfile.gettempdir())


def leftovers(form: str) -> list[Path]:
    """Folders made under names of a form, a regular expression."""
    made = re.compile(rf"(?:{form})-[a-z0-9_]{{8}}")  # As `mkdtemp` ends them.
    return [path for path in Path(tempfile.gettempdir()).iterdir() if made.fullmatch(path.name)]


BYTES_PER_BUILD = 3 * 10**9
"""Memory set aside for a build: converting 95 M to 202 M weights takes up to 2.7 GB at the peak."""

_POLL = 0.05


class Semaphore:
    """A re-entrant semaphore across processes: lock files, free when a process is killed."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count = count
        self._folder = folder
        self._inside = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for a permit and hold it; a process that holds one goes on at once."""
        if self._inside:
            yield
            return
        lock = self._free()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            lock.release()

    def _free(self) -> FileLock:
        while True:
            for number in range(self.count):
                lock = FileLock(self._folder / f"slot-{number}.lock")
                with suppress(Timeout):
                    lock.acquire(timeout=0)
                    return lock
            time.sleep(_POLL)


def default_builds() -> int:
    """Builds to run at once: as many as memory holds at 3 GB each, from one to one a core."""
    return max(1, min(os.cpu_count() or 1, available_memory() // BYTES_PER_BUILD))
