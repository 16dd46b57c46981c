"""Cache entries made by other processes; they must be importable by a spawned one."""

from __future__ import annotations

import os
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from pytest_ane.build.cache import Cache


def make_slowly(root: Path, log: Path, start: Barrier) -> None:
    """Get or make entry `key`; who makes it notes so in `log`."""

    def make(folder: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        (folder / "first").write_text("1")
        time.sleep(0.3)
        (folder / "second").write_text("2")

    cache = Cache(root)
    start.wait()
    found = cache.get_or_make("artifacts", "key", make)
    assert sorted(path.name for path in found.iterdir()) == ["first", "second"]


def make_forever(root: Path, began: Event) -> None:
    """Begin entry `key`, and never end."""

    def make(folder: Path) -> None:
        (folder / "first").write_text("half")
        began.set()
        time.sleep(600)

    Cache(root).get_or_make("artifacts", "key", make)
