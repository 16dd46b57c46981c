"""`pytest-ane cache list` and `prune`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ane.cli import main

Call = Callable[..., list[str]]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three entries of 1, 2 and 3 MB, the smallest used least recently."""
    for size, key in ((1, "a" * 64), (2, "b" * 64), (3, "c" * 64)):
        kind = "recordings" if size == 2 else "artifacts"
        folder = tmp_path / kind / key
        folder.mkdir(parents=True)
        (folder / "content").write_bytes(bytes(size * 1_000_000))
        os.utime(folder, (1_000_000_000 + size, 1_000_000_000 + size))
    return tmp_path


@pytest.fixture
def call(cache: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: str, code: int = 0) -> list[str]:
        assert main(["cache", *arguments, "--ane-cache", str(cache)]) == code
        out, err = capsys.readouterr()
        return (err if code else out).splitlines()

    return run


def test_list_shows_the_least_recently_used_first(call: Call, cache: Path) -> None:
    lines = call("list")
    assert [line[:37] for line in lines[:-1]] == [
        "artifacts  aaaaaaaaaaaaaaaa      1.00",
        "recordings bbbbbbbbbbbbbbbb      2.00",
        "artifacts  cccccccccccccccc      3.00",
    ]
    assert lines[-1] == f"3 entries, 6.0 MB in {cache}"


def test_prune_removes_everything_by_default(call: Call, cache: Path) -> None:
    assert call("prune") == [f"3 of 3 entries removed, 0.0 MB kept in {cache}"]
    assert call("list") == [f"0 entries, 0.0 MB in {cache}"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [("3 MB", "c"), ("4.9MB", "c"), ("5 MB", "bc"), ("1 GB", "abc"), ("5000000", "bc")],
)
def test_prune_keeps_the_most_recently_used(call: Call, cache: Path, keep: str, left: str) -> None:
    call("prune", f"--keep={keep}")
    kept = sorted(
        path.name[0] for kind in ("artifacts", "recordings") for path in (cache / kind).iterdir()
    )
    assert "".join(kept) == left
    assert list((cache / "tmp").iterdir()) == []


@pytest.mark.parametrize("keep", ["much", "2 TB", "-1", ""])
def test_what_is_no_size_is_one_sentence_and_removes_nothing(call: Call, keep: str) -> None:
    (line,) = call("prune", f"--keep={keep}", code=1)
    assert line.startswith(f"pytest-ane: --keep={keep}: ")
    assert line.endswith(".")
    assert len(call("list")) == 4


def test_a_cache_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["cache", "list", "--ane-cache", str(tmp_path / "file")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytest-ane: The cache folder {tmp_path / 'file'} cannot be written")
