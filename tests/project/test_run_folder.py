"""The folder that the processes of one run share."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from pytest_ane.make import Cache
from pytest_ane.project.progress import RunFolder


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


def test_half_a_file_is_none(run: RunFolder) -> None:
    run.write("a-1", 1)
    (run.folder / "a-2.json").write_text('{"x')
    assert run.read("a-") == [1]


def test_a_disk_that_takes_nothing_is_no_error(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    run.write("a-1", 1)
    with run.lock("a"):
        assert run.read("a-") == []


def test_an_error_under_the_lock_passes_and_lets_go(run: RunFolder) -> None:
    with pytest.raises(OSError, match="mine"), run.lock("a"):
        raise OSError("mine")
    with run.lock("a"):
        pass


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
