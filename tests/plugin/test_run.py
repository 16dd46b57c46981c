"""What the processes of one run share."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_ane.build import Cache
from pytest_ane.plugin.run import Run, is_worker, run_id, tell, worker


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Cache(tmp_path), "0" * 32)


def config(**more: Any) -> pytest.Config:
    return cast("pytest.Config", SimpleNamespace(stash=pytest.Stash(), **more))


def test_workers_have_the_name_of_the_run_that_started_them() -> None:
    controller = config()
    given: dict[str, Any] = {"workerid": "gw3"}
    tell(given, controller)
    started = config(workerinput=given)
    assert run_id(started) == run_id(controller) == run_id(controller)
    assert (is_worker(controller), is_worker(started)) == (False, True)
    assert (worker(controller), worker(started)) == ("main", "gw3")
    assert run_id(config()) != run_id(controller)


def test_what_is_written_is_read_by_prefix(run: Run) -> None:
    assert run.read("a-") == []
    run.write("a-1", {"x": 1})
    run.write("a-2", [2])
    run.write("b-1", 3)
    run.write("a-1", {"x": 4})
    assert run.read("a-") == [{"x": 4}, [2]]


def test_half_a_file_is_none(run: Run) -> None:
    run.write("a-1", 1)
    (run.folder / "a-2.json").write_text('{"x')
    assert run.read("a-") == [1]


def test_a_disk_that_takes_nothing_is_no_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    run.write("a-1", 1)
    with run.lock("a"):
        assert run.read("a-") == []


def test_an_error_under_the_lock_passes_and_lets_go(run: Run) -> None:
    with pytest.raises(OSError, match="mine"), run.lock("a"):
        raise OSError("mine")
    with run.lock("a"):
        pass


def test_one_at_a_time(run: Run) -> None:
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


def test_the_folder_is_kept_from_sweeping_and_then_goes(run: Run, tmp_path: Path) -> None:
    run.write("a-1", 1)
    with run.kept():
        Cache(tmp_path).sweep()
        assert run.read("a-") == [1]
    assert not run.folder.exists()
    run.write("a-1", 1)
    Cache(tmp_path).sweep()
    assert not run.folder.exists()
