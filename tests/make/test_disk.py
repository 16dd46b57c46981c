"""Where builds write: disk space, the cache's folder, temporary files, and builds at once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ane.make import disk
from pytest_ane.make.cache import Cache
from pytest_ane.make.disk import (
    BYTES_PER_BUILD,
    TAG,
    TAG_TEXT,
    Estimate,
    PlanCache,
    Volume,
    default_builds,
    estimate,
    plan_caches,
    scratch,
    temporary_folder,
    volumes,
)
from pytest_ane.manifest import Compression, Palettize, Policy, Shard
from pytest_ane.mlprogram.errors import CacheError
from tests.make.makers import KEY, make_counted

INT4 = Palettize(method="palettize", nbits=4)


def shards(
    count: int, max_bytes: int | None = None, compression: Compression = INT4
) -> list[Shard]:
    policy = Policy.model_validate({"compression": {"max_bytes": max_bytes}})
    return [
        Shard(model="m", id=f"L{i:02d}", family="llama", compression=compression, policy=policy)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("groups", "found"),
    [
        ([(shards(10), [90, 100, 900])], Estimate(10, 1000, 100 + 400, 500)),
        # A canary of 100 says nothing of forty shards that may have 3 each.
        (
            [([*shards(39, max_bytes=102), *shards(40, max_bytes=3)], [100])],
            Estimate(79, 39 * 100 + 40 * 3, 500, 39 * 50 + 40 * 1),
        ),
        ([(shards(10, max_bytes=100), [])], Estimate(10, 1000, 500, 500)),
        ([(shards(3), [])], Estimate(3, None, 0, 0)),
        ([([*shards(2, max_bytes=100), *shards(1)], [])], Estimate(3, None, 500, 100)),
        ([(shards(2), [100]), (shards(3, max_bytes=10), [])], Estimate(5, 230, 500, 115)),
        ([], Estimate(0)),
    ],
)
def test_what_is_missing(groups: Any, found: Estimate) -> None:
    """By what is built, or by budgets, which are upper bounds; a sum that is not known is None."""
    assert estimate(groups) == found


def test_one_volume_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: SimpleNamespace(free=2000))
    needs = estimate([(shards(10), [100])])
    (volume,) = volumes(tmp_path, tmp_path, needs, builds=2)
    assert (volume.needed, volume.least, volume.free) == (1000 + 2 * 500, 500, 2000)
    assert not volume.too_small
    assert str(volume) == (
        f"cache {tmp_path} and temporary files {tmp_path}: about 0.0 MB needed, 0.0 MB free"
    )


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second volume")
def test_two_volumes_are_told_apart(tmp_path: Path) -> None:
    cache, temporary = volumes(tmp_path, Path("/dev/shm"), estimate([(shards(2), [100])]), builds=1)
    assert (cache.needed, cache.least) == (200, 100)
    assert (temporary.needed, temporary.least) == (500, 0)
    assert temporary.folders == "temporary files /dev/shm"


def test_a_volume_is_too_small_for_what_is_certain_only() -> None:
    least = Volume("v", None, least=2_000_000, free=10**6)
    assert str(least) == "v: at least 2.0 MB needed, 1.0 MB free"
    assert Volume("v", needed=10, least=6, free=5).too_small
    assert not Volume("v", needed=10, least=5, free=5).too_small


CACHE = "com.apple.e5rt.e5bundlecache"


def plans(caches: Path, application: str, build: str, size: int) -> Path:
    folder = caches / application / CACHE / build
    (folder / "0A1B").mkdir(parents=True)
    (folder / "0A1B" / "bundle").write_bytes(bytes(size))
    return folder


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all applications' caches on a Mac that runs the build 25B78."""
    monkeypatch.setattr(sys, "platform", "darwin")
    said = SimpleNamespace(stdout="25B78\n")
    monkeypatch.setattr(disk.subprocess, "run", lambda command, **options: said)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "Library" / "Caches"


def test_plans_of_other_systems_are_stale_and_the_largest_come_first(caches: Path) -> None:
    new = plans(caches, "python3.12", "25B78", 10)
    old = plans(caches, "python3.12", "24G84", 30)
    other = plans(caches, "org.example.app", "24G84", 20)
    (caches / "org.example.app" / "unrelated").mkdir()
    (caches / "org.example.app" / CACHE / "a file").touch()
    assert plan_caches() == [
        PlanCache(old, 30, stale=True),
        PlanCache(other, 20, stale=True),
        PlanCache(new, 10, stale=False),
    ]
    assert old.is_dir()


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_new_cache_is_tagged(tmp_path: Path) -> None:
    Cache(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache" / TAG).read_text() == TAG_TEXT
    assert list((tmp_path / "new" / "cache" / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "thesis.tex", ".git/config", "tmp",
    ],
)  # fmt: skip
def test_a_folder_with_other_content_is_refused(tmp_path: Path, name: str) -> None:
    fill(tmp_path, name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CacheError, match=r"is no cache folder of pytest-ane: it holds .*; name a "):
        Cache(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "Signature: 8a477f597d28d172789f06886806bc55\n# By mypy.\n"])
def test_a_tag_of_another_tool_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / TAG).write_text(text)
    with pytest.raises(CacheError, match=rf"it holds {TAG} and no {TAG} of pytest-ane"):
        Cache(tmp_path)
    assert (tmp_path / TAG).read_text() == text


def test_links_are_other_content(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tmp").symlink_to(tmp_path / "mine", target_is_directory=True)
    with pytest.raises(CacheError, match="it holds tmp and no"):
        Cache(tmp_path / "cache")


def test_a_cache_that_lost_its_tag_is_known_by_its_names(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.get_or_make("artifacts", KEY, lambda folder: (folder / "file").touch())
    cache.get_or_make("compiled", f"{KEY}-1", lambda folder: None)
    fill(tmp_path, "digests/files.jsonl", "recommend/smollm2.jsonl", "tmp/.write-7")
    (tmp_path / TAG).unlink()
    Cache(tmp_path)
    assert (tmp_path / TAG).read_text() == TAG_TEXT


def test_a_tagged_folder_stays_a_cache_whatever_is_added(tmp_path: Path) -> None:
    Cache(tmp_path)
    fill(tmp_path, "notes.txt", "tmp/thesis/chapter")
    shutil.rmtree(tmp_path / "artifacts")
    Cache(tmp_path).sweep()
    assert (tmp_path / "tmp" / "thesis" / "chapter").exists()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_one_within_another_knows_the_outermost_and_goes_after_an_error(tmp_path: Path) -> None:
    with suppress(OSError), scratch("outer"), scratch("inner"):
        assert temporary_folder() == tmp_path
        assert Path(tempfile.gettempdir()).parent.parent == tmp_path
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)


def test_what_was_left_under_the_name_goes_first(tmp_path: Path) -> None:
    left = tmp_path / "name-a_0bcdef"
    others = [tmp_path / name for name in ("other-a_0bcdef", "name-thesis", "name-a_0bcdef-copy")]
    for folder in (left, *others):
        folder.mkdir()
    with scratch("name"):
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted(others)


SPAWN = multiprocessing.get_context("spawn")


@pytest.mark.drawn
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_no_more_than_count_at_once(tmp_path: Path, count: int) -> None:
    log, start = tmp_path / "log", SPAWN.Barrier(4)
    processes = [
        SPAWN.Process(
            target=make_counted, args=(tmp_path / "cache", count, f"{i}" * 64, log, start)
        )
        for i in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    inside = most = 0
    for line in log.read_text().split():
        inside += 1 if line == "begin" else -1
        most = max(most, inside)
    assert most == count


def test_an_entry_made_for_another_needs_no_second_permit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, builds=1)

    def outer(folder: Path) -> None:
        cache.get_or_make("recordings", "a" * 64, lambda inner: (inner / "file").touch())
        (folder / "file").touch()

    assert (cache.get_or_make("recordings", "b" * 64, outer) / "file").exists()
    assert len(cache.entries()) == 2


@pytest.mark.parametrize(
    ("memory", "cores", "count"),
    [(1, 8, 1), (2 * BYTES_PER_BUILD, 8, 2), (100 * BYTES_PER_BUILD, 4, 4), (0, None, 1)],
)
def test_the_default_fits_memory_and_cores(
    monkeypatch: pytest.MonkeyPatch, memory: int, cores: int | None, count: int
) -> None:
    monkeypatch.setattr(disk, "available_memory", lambda: memory)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_builds() == count
