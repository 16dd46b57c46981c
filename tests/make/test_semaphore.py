"""The semaphore: no more builds at once than permits, over all processes; a dead one has none."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from pytest_ane.make import semaphore
from pytest_ane.make.cache import Cache
from pytest_ane.make.semaphore import BYTES_PER_BUILD, Semaphore, default_builds
from tests.make.makers import hold_slot, make_counted

SPAWN = multiprocessing.get_context("spawn")


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


def test_it_is_re_entrant(tmp_path: Path) -> None:
    permit = Semaphore(tmp_path, 1)
    with permit.held(), permit.held():
        pass
    with permit.held():
        pass


def test_an_entry_made_for_another_needs_no_second_permit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, builds=1)

    def outer(folder: Path) -> None:
        cache.get_or_make("recordings", "a" * 64, lambda inner: (inner / "file").touch())
        (folder / "file").touch()

    assert (cache.get_or_make("recordings", "b" * 64, outer) / "file").exists()
    assert len(cache.entries()) == 2


def test_a_killed_process_frees_its_permit(tmp_path: Path) -> None:
    began = SPAWN.Event()
    process = SPAWN.Process(target=hold_slot, args=(tmp_path, began))
    process.start()
    assert began.wait(30)
    process.kill()
    process.join(30)
    with Semaphore(tmp_path, 1).held():
        pass


@pytest.mark.parametrize(
    ("memory", "cores", "count"),
    [(1, 8, 1), (2 * BYTES_PER_BUILD, 8, 2), (100 * BYTES_PER_BUILD, 4, 4), (0, None, 1)],
)
def test_the_default_fits_memory_and_cores(
    monkeypatch: pytest.MonkeyPatch, memory: int, cores: int | None, count: int
) -> None:
    monkeypatch.setattr(semaphore, "available_memory", lambda: memory)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert default_builds() == count
