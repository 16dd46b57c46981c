"""Core ML's caches of plans, in a folder made to look like a user's on macOS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_ane.build.plans import PlanCache, plan_caches

CACHE = "com.apple.e5rt.e5bundlecache"


def plans(caches: Path, application: str, build: str, size: int) -> Path:
    folder = caches / application / CACHE / build
    (folder / "0A1B").mkdir(parents=True)
    (folder / "0A1B" / "bundle").write_bytes(bytes(size))
    return folder


def test_plans_of_other_systems_are_stale_and_the_largest_come_first(tmp_path: Path) -> None:
    new = plans(tmp_path, "python3.12", "25B78", 10)
    old = plans(tmp_path, "python3.12", "24G84", 30)
    other = plans(tmp_path, "org.example.app", "24G84", 20)
    (tmp_path / "org.example.app" / "unrelated").mkdir()
    (tmp_path / "org.example.app" / CACHE / "a file").touch()
    assert plan_caches(tmp_path, "25B78") == [
        PlanCache(old, 30, stale=True),
        PlanCache(other, 20, stale=True),
        PlanCache(new, 10, stale=False),
    ]
    assert old.is_dir()


def test_a_file_among_them_is_none(tmp_path: Path) -> None:
    (tmp_path / "app" / CACHE).mkdir(parents=True)
    (tmp_path / "app" / CACHE / "file").write_bytes(b"12345")
    assert plan_caches(tmp_path, "25B78") == []


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have some")
def test_other_systems_have_none() -> None:
    assert plan_caches() == []
