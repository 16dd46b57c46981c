"""The cache: an entry that exists is complete, whatever happened to whoever made it."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.make.cache import Cache
from pytest_ane.make.disk import KINDS
from pytest_ane.make.shared_store import SEAL
from pytest_ane.mlprogram.errors import BuildError, CacheError
from tests.make.makers import KEY, make_forever, make_slowly

OTHER = "b" * 64
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def writes(text: str) -> Callable[[Path], None]:
    """A maker of one file."""

    def make(folder: Path) -> None:
        (folder / "file").write_text(text)

    return make


def raises(error: BaseException) -> Callable[[Path], None]:
    """A maker that leaves half an entry behind."""

    def make(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise error

    return make


def assert_clean(cache: Cache) -> None:
    """No entry, no leftovers, and the next run makes the entry."""
    assert cache.entries() == []
    assert list((cache.root / "tmp").iterdir()) == []
    found = cache.get_or_make("artifacts", KEY, writes("whole"))
    assert (found / "file").read_text() == "whole"


def test_sweep_deletes_what_killed_processes_left(cache: Cache) -> None:
    left = cache.root / "tmp" / f"artifacts-{KEY}"
    left.mkdir()
    (left / "half").touch()
    cache.sweep()
    assert not left.exists()


def test_sweep_spares_what_is_being_made(cache: Cache) -> None:
    def make(folder: Path) -> None:
        (folder / "file").write_text("whole")
        Cache(cache.root).sweep()
        assert (folder / "file").exists()

    found = cache.get_or_make("artifacts", KEY, make)
    assert (found / "file").read_text() == "whole"


def test_an_entry_is_made_once(cache: Cache) -> None:
    assert cache.get("artifacts", KEY) is None
    first = cache.get_or_make("artifacts", KEY, writes("first"))
    second = cache.get_or_make("artifacts", KEY, writes("second"))
    assert first == second == cache.get("artifacts", KEY) == cache.path("artifacts", KEY)
    assert (first / "file").read_text() == "first"
    assert list((cache.root / "tmp").iterdir()) == []


def test_entries_least_recently_used_first(cache: Cache) -> None:
    for key in "abc":
        os.utime(cache.get_or_make("recordings", key * 64, writes(key * 10)), (1000, 1000))
    cache.get("recordings", "a" * 64)
    os.utime(cache.path("recordings", "b" * 64), (2000, 2000))
    entries = cache.entries()
    assert [entry.key[0] for entry in entries] == ["c", "b", "a"]
    sealed = 10 + (entries[0].path / SEAL).stat().st_size
    assert [(e.kind, e.size, e.used) for e in entries[:2]] == [
        ("recordings", sealed, 1000),
        ("recordings", sealed, 2000),
    ]


def test_an_entry_is_removed_whole_unless_it_was_used_since_it_was_listed(cache: Cache) -> None:
    os.utime(cache.get_or_make("artifacts", KEY, writes("old")), (1000, 1000))
    (entry,) = cache.entries()
    assert cache.get("artifacts", KEY) is not None
    assert not cache.remove(entry)
    assert cache.get("artifacts", KEY) is not None
    cache.remove(*cache.entries())
    assert_clean(cache)


@pytest.mark.parametrize("use", ["get", "make"])
def test_what_is_used_was_used_since_its_user_began(cache: Cache, use: str) -> None:
    assert cache.in_use_since() == math.inf
    if use == "get":
        os.utime(cache.get_or_make("artifacts", KEY, writes("whole")), (1000, 1000))
    user = Cache(cache.root)
    user.get_or_make("artifacts", KEY, writes("whole"))
    assert [entry.used >= cache.in_use_since() for entry in cache.entries()] == [True]


@pytest.mark.drawn
@pytest.mark.slow
def test_two_processes_make_an_entry_once(cache: Cache, tmp_path: Path) -> None:
    start = SPAWN.Barrier(2)
    arguments = (cache.root, tmp_path / "log", start)
    processes = [SPAWN.Process(target=make_slowly, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len((tmp_path / "log").read_text().splitlines()) == 1


def test_a_killed_process_leaves_a_usable_cache(cache: Cache) -> None:
    began = SPAWN.Event()
    process = SPAWN.Process(target=make_forever, args=(cache.root, began))
    process.start()
    assert began.wait(30)
    process.kill()
    process.join(30)
    assert process.exitcode == -9
    assert cache.get("artifacts", KEY) is None
    assert [path.name for path in (cache.root / "tmp").iterdir()] == [f"artifacts-{KEY}"]
    found = cache.get_or_make("artifacts", KEY, writes("whole"))
    assert {path.name for path in found.iterdir()} == {"file", SEAL}
    assert list((cache.root / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "rest"),
    [
        (errno.ENOSPC, "; free some space (pytest-ane cache prune), or choose other folders with"),
        (errno.EIO, "; free some space (pytest-ane cache prune), or choose other folders with"),
        (errno.EACCES, "; see that it may be read and written, or choose other folders with --ane"),
        (errno.EROFS, "; see that it may be read and written, or choose other folders with --ane"),
    ],
)
def test_a_failing_disk_is_one_sentence_and_leaves_no_entry(
    cache: Cache, number: int, rest: str
) -> None:
    """What may not be read or written needs no space."""
    failure = OSError(number, os.strerror(number), "/tmp/half.bin")
    with pytest.raises(BuildError) as error:
        cache.get_or_make("artifacts", KEY, raises(failure))
    said = f"Building into {cache.root} failed: {os.strerror(number)}: /tmp/half.bin"
    assert str(error.value).startswith(said)
    assert rest in str(error.value)
    assert_clean(cache)


def test_a_disk_that_fills_while_a_package_is_copied(cache: Cache) -> None:
    """`shutil.copytree`, which coremltools saves with, collects errors without a number."""
    why = "[Errno 28] No space left on device: 'a/file' -> 'b/file'"
    failure = shutil.Error([("a/file", "b/file", why), ("a/more", "b/more", why)])
    with pytest.raises(BuildError, match=r" failed: No space left on device: b/file \("):
        cache.get_or_make("artifacts", KEY, raises(failure))
    assert_clean(cache)


def test_the_converter_s_writer_speaks_of_the_disk_in_its_own_words(cache: Cache) -> None:
    said = "m:L00 could not be converted: [MIL FileWriter]: Unknown error occurred while writing."
    with pytest.raises(BuildError, match=r"^Building into .* failed: m:L00 could not .* GB free"):
        cache.get_or_make("artifacts", KEY, raises(BuildError(said)))
    assert_clean(cache)


def test_temporary_files_go_with_the_build(cache: Cache) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(Path(tempfile.mkdtemp()))
        made.append(Path(os.environ["TMPDIR"]))
        (folder / "file").touch()

    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    cache.get_or_make("artifacts", KEY, make)
    assert made[0].parent == made[1]
    assert made[1].parent == Path(before[0])
    assert not made[1].exists()
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before


def test_temporary_files_of_a_killed_build_are_swept(cache: Cache) -> None:
    def make(folder: Path) -> None:
        seen.append(Path(tempfile.gettempdir()))
        Cache(cache.root).sweep()
        assert seen[-1].exists()

    seen: list[Path] = []
    cache.get_or_make("artifacts", KEY, make)
    left = [seen[0].with_name(seen[0].name[:-8] + rest) for rest in ("aaaaaaaa", "bbbbbbbb")]
    other = Cache(cache.root.with_name("other"))
    for sweeper, gone in ((other, False), (cache, True)):
        for folder in left:
            folder.mkdir(exist_ok=True)
        sweeper.sweep()
        assert [folder.exists() for folder in left] == [not gone] * 2


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), BuildError("no"), ValueError("no")])
def test_an_interruption_passes_and_leaves_no_entry(
    cache: Cache, interruption: BaseException
) -> None:
    with pytest.raises(type(interruption)):
        cache.get_or_make("artifacts", KEY, raises(interruption))
    assert_clean(cache)


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(CacheError) as error:
        Cache(tmp_path / "cache")
    assert str(error.value) == (
        f"The cache folder {tmp_path / 'cache'} cannot be written (Permission denied); choose "
        "another with --ane-cache=DIR."
    )


def test_only_names_of_our_own_form_are_swept_or_listed(cache: Cache) -> None:
    names = ("thesis", f"artifacts-{KEY[1:]}", KEY, "run-1", f"artifacts-{KEY}.old", ".write-x")
    others = [cache.root / "tmp" / name for name in names]
    others += [cache.root / kind / name for kind in KINDS for name in ("release-1.0", KEY.upper())]
    for folder in others:
        folder.mkdir()
    link = cache.root / "artifacts" / OTHER
    link.symlink_to(others[0], target_is_directory=True)
    probe = cache.root / "tmp" / ".write-1"
    probe.touch()
    cache.sweep()
    assert cache.entries() == []
    assert all(folder.is_dir() for folder in (*others, link))
    assert not probe.exists()


def test_a_linked_folder_is_not_swept(cache: Cache, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / f"artifacts-{KEY}"
    mine.mkdir(parents=True)
    (cache.root / "tmp").rmdir()
    (cache.root / "tmp").symlink_to(mine.parent, target_is_directory=True)
    cache.sweep()
    assert mine.is_dir()
