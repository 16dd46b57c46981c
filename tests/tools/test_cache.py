"""`pytest-ane cache list`, `prune` and `push`."""

from __future__ import annotations

import multiprocessing
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ane.cli import main
from pytest_ane.make import BuildRecord, Cache
from pytest_ane.make.shared_store import write_seal
from pytest_ane.probes.recording import save
from tests.make.makers import use_forever
from tests.tools.conftest import AsJson, Says

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Three entries of 1, 2 and 3 MB, the smallest used least recently."""
    kept = Cache(tmp_path)
    for size, key in ((1, "a" * 64), (2, "b" * 64), (3, "c" * 64)):
        folder = kept.path("recordings" if size == 2 else "artifacts", key)
        folder.mkdir()
        (folder / "content").write_bytes(bytes(size * 1_000_000))
        os.utime(folder, (1_000_000_000 + size, 1_000_000_000 + size))
    return tmp_path


@pytest.fixture
def call(cache: Path, says: Says) -> Says:
    return partial(says, "cache", "--ane-cache", cache)


def test_list_shows_the_least_recently_used_first(call: Says, cache: Path) -> None:
    *lines, total = call("list")
    assert [(line[:12], line[28:37]) for line in lines] == [
        ("artifacts  a", "     1.00"), ("recordings b", "     2.00"), ("artifacts  c", "     3.00"),
    ]  # fmt: skip
    assert total == f"3 entries, 6.0 MB in {cache}"


def test_entries_name_the_shard_they_were_made_for(call: Says, cache: Path) -> None:
    BuildRecord({}, {}, (), 1.0, shard="m:L\x1b[2J").write(cache / "artifacts" / ("a" * 64))
    save(cache / "recordings" / ("b" * 64), {}, {"shard": "m:L01"})
    by_key = {line.split()[1][0]: line for line in call("list")[:-1]}
    assert by_key["a"].endswith(r"  m:L\x1b[2J")
    assert by_key["b"].endswith("  m:L01")
    assert re.search(r"  used [-\d]+ [:\d]+$", by_key["c"])


def test_as_json(as_json: AsJson, cache: Path) -> None:
    def keys(entries: list[dict[str, Any]]) -> str:
        return "".join(entry["key"][0] for entry in entries)

    BuildRecord({}, {}, (), 1.0, shard="m:L00").write(cache / "artifacts" / ("c" * 64))
    found = as_json("cache", "list", "--cache", str(cache))
    assert (found["root"], keys(found["entries"])) == (str(cache), "abc")
    assert [entry["shard"] for entry in found["entries"]] == [None, None, "m:L00"]
    for more, removed in ([], 0), (["--yes"], 3):
        found = as_json("cache", "prune", *more, "--ane-cache", str(cache))
        assert (keys(found["chosen"]), found["removed"]) == ("abc", removed)


def test_prune_says_what_it_would_delete(call: Says, cache: Path) -> None:
    listed = call("list")[:-1]
    assert call("prune") == [
        *listed,
        "3 of 3 entries, 6.0 MB, would be deleted; nothing was: pytest-ane cache prune --yes "
        "deletes them",
    ]
    assert call("list")[:-1] == listed


@pytest.mark.drawn
@pytest.mark.slow
def test_prune_keeps_what_a_running_process_uses(call: Says, cache: Path) -> None:
    used = cache / "artifacts" / ("a" * 64)
    write_seal(used, "artifacts", used.name)
    os.utime(used, (1_000_000_001, 1_000_000_001))
    listed = call("list")
    began = SPAWN.Event()
    process = SPAWN.Process(target=use_forever, args=(cache, "artifacts", used.name, began))
    process.start()
    assert began.wait(30)
    assert call("prune", "--yes") == [
        *listed[1:3],
        "kept: 1.0 MB that a running process may use",
        f"2 of 3 entries removed, 1.0 MB kept in {cache}",
    ]
    process.kill()
    process.join(30)
    assert call("prune", "--yes")[-1] == f"1 of 1 entries removed, 0.0 MB kept in {cache}"
    assert list((cache / "locks").glob("use-*")) == []


@pytest.mark.parametrize(
    ("keep", "left"),
    [("0", ""), ("3 MB", "c"), ("4.9MB", "c"), ("5 MB", "bc"), ("1 GB", "abc"), ("5000000", "bc")],
)
def test_prune_keeps_the_most_recently_used(call: Says, cache: Path, keep: str, left: str) -> None:
    said = call("prune", "--yes", *([f"--keep={keep}"] if keep != "0" else []))
    assert said[-1].startswith(f"{3 - len(left)} of 3 entries removed, ")
    kept = sorted(
        path.name[0] for kind in ("artifacts", "recordings") for path in (cache / kind).iterdir()
    )
    assert "".join(kept) == left
    assert list((cache / "tmp").iterdir()) == []


@pytest.mark.parametrize("keep", ["much", "2 TB", "-1", ""])
def test_what_is_no_size_removes_nothing(call: Says, keep: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        call("prune", f"--keep={keep}", "--yes")
    assert len(call("list")) == 4


def test_other_content_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = tmp_path / "releases" / "1.0" / "file"
    release.parent.mkdir(parents=True)
    release.touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["cache", "prune", "--yes", "--ane-cache", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytest-ane: {tmp_path} is no cache folder of pytest-ane: it holds ")
    assert sorted(tmp_path.rglob("*")) == before


def test_push_gives_a_store_what_it_lacks(tmp_path: Path, call: Says, cache: Path) -> None:
    for folder in sorted(cache.glob("*/" + "[abc]" * 64)):
        write_seal(folder, folder.parent.name, folder.name)
    (cache / "artifacts" / ("c" * 64) / "content").write_bytes(b"edited")
    (line,) = call("push", code=1)
    assert line.startswith("pytest-ane: cache push needs --store=URL")
    store = tmp_path / "store"
    for _ in range(2):
        *_, damaged, last = call("push", f"--store={store}", code=1)
        assert damaged.endswith("was damaged or edited: content has other bytes; it is not stored.")
        assert last == "pytest-ane: 1 of 3 entries are not stored, as said above."
    assert sorted(path.name[0] for path in store.glob("*/*.tar")) == ["a", "b"]
