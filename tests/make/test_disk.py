"""Disk space: what builds will need, and what an older macOS left behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_ane.make import disk
from pytest_ane.make.disk import (
    Estimate,
    PlanCache,
    Volume,
    amount,
    compression_ratio,
    estimate,
    plan_caches,
    volumes,
)
from pytest_ane.manifest import Compression, Linear, Palettize, Policy, Shard, Uncompressed

INT4 = Palettize(method="palettize", nbits=4)


def shards(
    count: int, max_bytes: int | None = None, compression: Compression = INT4
) -> list[Shard]:
    policy = Policy.model_validate({"compression": {"max_bytes": max_bytes}})
    return [
        Shard(model="m", id=f"L{i:02d}", family="llama", compression=compression, policy=policy)
        for i in range(count)
    ]


def test_the_size_of_what_is_built_speaks_for_the_rest() -> None:
    found = estimate(shards(10), [90, 100, 900])
    assert found == Estimate(10, 1000, 100 + 400, 500, "packages built before")


def test_what_is_built_may_be_of_another_kind() -> None:
    """A canary of 100 says nothing of forty shards that may have 3 each."""
    missing = [*shards(39, max_bytes=102), *shards(40, max_bytes=3)]
    found = estimate(missing, [100])
    assert (found.total, found.least) == (39 * 100 + 40 * 3, 39 * 50 + 40 * 1)


def test_a_budget_is_an_upper_bound() -> None:
    assert estimate(shards(10, max_bytes=100), []) == Estimate(10, 1000, 500, 500, "max-bytes")


def test_nothing_is_known_without_either() -> None:
    found = estimate(shards(3), [])
    assert (found.count, found.total, found.least) == (3, None, 0)


def test_a_budget_for_some_leaves_the_sum_unknown_but_not_the_least() -> None:
    found = estimate([*shards(2, max_bytes=100), *shards(1)], [])
    assert (found.count, found.total, found.least) == (3, None, 100)


def test_models_add_up() -> None:
    first, second = estimate(shards(2), [100]), estimate(shards(3, max_bytes=10), [])
    both = first + second + Estimate(0)
    assert both == Estimate(5, 230, 500, 115, "packages built before and max-bytes")
    assert (first + estimate(shards(1), [])).total is None


@pytest.mark.parametrize(
    ("compression", "times"),
    [
        (INT4, 4),
        (Palettize(method="palettize", nbits=8), 2),
        (Linear(method="linear", dtype="int8"), 2),
        (Linear(method="linear", dtype="uint4", granularity="per_block"), 4),
        (Uncompressed(method="none"), 1),
    ],
)
def test_fp16_is_larger_by_the_bits(compression: Compression, times: int) -> None:
    assert compression_ratio(compression) == times


def test_one_volume_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(2000))
    needs = estimate(shards(10), [100])
    (volume,) = volumes(tmp_path, tmp_path, needs, builds=2)
    assert (volume.needed, volume.least, volume.free) == (1000 + 2 * 500, 500, 2000)
    assert not volume.too_small
    assert str(volume) == (
        f"cache {tmp_path} and temporary files {tmp_path}: about 0.0 MB needed, 0.0 MB free"
    )


def test_no_more_builds_at_once_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(10))
    (volume,) = volumes(tmp_path, tmp_path, estimate(shards(1), [100]), builds=8)
    assert volume.needed == 100 + 500
    assert volume.too_small


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second volume")
def test_two_volumes_are_told_apart(tmp_path: Path) -> None:
    cache, temporary = volumes(tmp_path, Path("/dev/shm"), estimate(shards(2), [100]), builds=1)
    assert (cache.needed, cache.least) == (200, 100)
    assert (temporary.needed, temporary.least) == (500, 0)
    assert temporary.folders == "temporary files /dev/shm"


def test_what_is_unknown_is_left_out(tmp_path: Path) -> None:
    (volume,) = volumes(tmp_path, tmp_path, estimate(shards(2), []), builds=1)
    assert re.fullmatch(r"cache .*: [\d.]+ .B free", str(volume))
    assert not volume.too_small


def test_the_least_is_shown_where_no_more_is_known() -> None:
    assert str(Volume("v", None, least=2_000_000, free=10**6)) == (
        "v: at least 2.0 MB needed, 1.0 MB free"
    )


def test_a_volume_is_too_small_for_what_is_certain_only() -> None:
    assert Volume("v", needed=10, least=6, free=5).too_small
    assert not Volume("v", needed=10, least=5, free=5).too_small


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 MB"), (3_140_000, "3.1 MB"), (86 * 10**9, "86.0 GB")]
)
def test_amounts(size: int, text: str) -> None:
    assert amount(size) == text


class Usage:
    """What `shutil.disk_usage` gives."""

    def __init__(self, free: int) -> None:
        self.free = free


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
    monkeypatch.setattr("pytest_ane.make.disk._running", lambda: "25B78")
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


def test_a_file_among_them_is_none(caches: Path) -> None:
    (caches / "app" / CACHE).mkdir(parents=True)
    (caches / "app" / CACHE / "file").write_bytes(b"12345")
    assert plan_caches() == []


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have some")
def test_other_systems_have_none() -> None:
    assert plan_caches() == []
