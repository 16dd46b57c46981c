"""Which folders are used as a cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_ane.make import Cache
from pytest_ane.make.folder import TAG, TAG_TEXT
from pytest_ane.mlprogram.errors import CacheError
from tests.make.makers import KEY


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
        "thesis.tex", "tmp/thesis/chapter", "artifacts/release-1.0/file", ".git/config", "tmp",
        f"artifacts/{KEY}/file", f"digests/{KEY}.txt", "locks/mine.lock", "digests/files.jsonl.old",
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
    fill(tmp_path, "digests/files.jsonl", f"digests/{KEY}.lock", f"tmp/run-{'0' * 32}/a.json",
         "recommend/smollm2.jsonl", f"tmp/artifacts-{KEY}.removed-7/file", "tmp/.write-7",
         "locks/slot-0.lock", f"locks/run-{'0' * 32}.lock")  # fmt: skip
    (tmp_path / TAG).unlink()
    Cache(tmp_path)
    assert (tmp_path / TAG).read_text() == TAG_TEXT


def test_a_tagged_folder_stays_a_cache_whatever_is_added(tmp_path: Path) -> None:
    Cache(tmp_path)
    fill(tmp_path, "notes.txt", "tmp/thesis/chapter")
    shutil.rmtree(tmp_path / "artifacts")
    Cache(tmp_path).sweep()
    assert (tmp_path / "tmp" / "thesis" / "chapter").exists()
