"""Cache entries made by other processes; they must be importable by a spawned one."""

from __future__ import annotations

import os
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from pytest_ane.make.cache import Cache

KEY = "a" * 64


def make_slowly(root: Path, log: Path, start: Barrier) -> None:
    """Get or make entry `KEY`; who makes it notes so in `log`."""

    def make(folder: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        (folder / "first").write_text("1")
        time.sleep(0.3)
        (folder / "second").write_text("2")

    cache = Cache(root)
    start.wait()
    found = cache.get_or_make("artifacts", KEY, make)
    assert sorted(path.name for path in found.iterdir()) == ["first", "seal.json", "second"]


def make_forever(root: Path, began: Event) -> None:
    """Begin entry `KEY`, and never end."""

    def make(folder: Path) -> None:
        (folder / "first").write_text("half")
        began.set()
        time.sleep(600)

    Cache(root).get_or_make("artifacts", KEY, make)


def make_counted(root: Path, builds: int, key: str, log: Path, start: Barrier) -> None:
    """Make an entry of its own, at most `builds` processes at once; note begin and end."""

    def make(folder: Path) -> None:
        for word in ("begin", "end"):
            with log.open("a") as file:
                file.write(f"{word}\n")
            time.sleep(0.5 if word == "begin" else 0)

    cache = Cache(root, builds=builds)
    start.wait()
    cache.get_or_make("artifacts", key, make)


def use_forever(root: Path, kind: str, key: str, began: Event) -> None:
    """Use an entry, and never end."""
    cache = Cache(root)
    assert cache.get(kind, key)
    began.set()
    time.sleep(600)
