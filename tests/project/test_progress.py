"""Progress of builds: the line, when it is shown and erased; the folder that a run shares."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from pytest_ane.make import Cache
from pytest_ane.project.progress import Progress, RunFolder, words


@pytest.mark.parametrize(
    ("done", "size", "seconds", "text"),
    [
        (0, 0, 0.0, "m:L00 (1 of 34)"),
        (0, 0, 99.0, "m:L00 (1 of 34)"),
        (1, 3_200_000, 0.5, "m:L00 (2 of 34, 3.2 MB done)"),
        (2, 6_400_000, 5.0, "m:L00 (3 of 34, 6.4 MB done, about 80 s left)"),
        (33, 0, 33.0, "m:L00 (34 of 34, about 1 s left)"),
        (34, 0, 33.0, "m:L00 (34 of 34)"),
    ],
)
def test_words(done: int, size: int, seconds: float, text: str) -> None:
    assert words("m:L00", done=done, total=34, size=size, seconds=seconds) == text


def test_what_other_machines_are_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time left is that at the pace so far."""
    now = iter([0.0, 1.0, 10.0, 14.0, 20.0, 21.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    shown: list[str] = []
    progress = Progress(6, shown.append)
    progress.elsewhere(["m:L00", "m:L01"], 0)
    progress.elsewhere(["m:L01", "m:L02"], 1)
    progress.elsewhere(["m:L01", "m:L02"], 1)
    progress.elsewhere([f"m:L{i:02}" for i in range(5)], 2)
    progress.elsewhere([], 6)
    assert shown == [
        "m:L00, m:L01 at workers (0 of 6 done)",
        "m:L01, m:L02 at workers (1 of 6 done, about 50 s left)",
        "m:L01, m:L02 at workers (1 of 6 done, about 70 s left)",
        "5 shards at workers (2 of 6 done, about 40 s left)",
        "",
    ]


def test_a_line_is_shown_while_a_shard_is_built_and_then_erased() -> None:
    shown: list[str] = []
    progress = Progress(2, shown.append)
    with progress.building("m:L00") as built:
        progress.step("m:L00", "converting")
        built(2_000_000)
    with pytest.raises(OSError, match="full"), progress.building("m:L01"):
        raise OSError("full")
    with progress.showing("waiting"):
        progress.step("m:L00", "converting")
    assert shown == [
        "m:L00 (1 of 2)",
        "m:L00: converting (1 of 2)",
        "",
        "m:L01 (2 of 2, 2.0 MB done)",
        "",
        "waiting",
        "",
    ]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(Cache(tmp_path), "0" * 32)


def test_what_is_written_is_read_by_prefix(run: RunFolder) -> None:
    assert run.read("a-") == []
    run.write("a-1", {"x": 1})
    run.write("a-2", [2])
    run.write("b-1", 3)
    run.write("a-1", {"x": 4})
    assert run.read("a-") == [{"x": 4}, [2]]


def test_a_disk_that_takes_nothing_is_no_error(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    run.write("a-1", 1)
    with run.lock("a"):
        assert run.read("a-") == []


def test_one_at_a_time(run: RunFolder) -> None:
    order: list[str] = []

    def other() -> None:
        with run.lock("a"):
            order.append("other")

    with run.lock("a"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_the_folder_is_kept_from_sweeping_and_then_goes(run: RunFolder, tmp_path: Path) -> None:
    run.write("a-1", 1)
    with run.kept():
        Cache(tmp_path).sweep()
        assert run.read("a-") == [1]
    assert not run.folder.exists()
    run.write("a-1", 1)
    Cache(tmp_path).sweep()
    assert not run.folder.exists()
