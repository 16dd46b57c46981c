"""Shards that are slower than they are, to see a throughput gate turn red."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import patch


class SlowRunner:
    """A runner whose every prediction takes longer, of the processor's time and so of everybody's.

    Args:
        runner: what predicts.
        seconds: added to each call.
    """

    def __init__(self, runner: Any, seconds: float) -> None:
        self._runner = runner
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def predict(self, *arguments: Any, **named: Any) -> Any:
        """Predict, then use the processor for the added seconds."""
        result = self._runner.predict(*arguments, **named)
        # A sleep would oversleep by more than a shard takes, and be no time of the processor.
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return result


@contextmanager
def slowed(seconds: Mapping[str, float]) -> Iterator[None]:
    """While it is entered, shards predict so many seconds slower, on either backend.

    Args:
        seconds: by pattern of shard ids (`L01`, `head.*`), or of an own package's name.
    """
    # Not on top: their import fixes numpy's threads, and takes a second.
    from pytest_ane.backends import CoreMLBackend, CpuBackend

    with ExitStack() as stack:
        for backend in (CpuBackend, CoreMLBackend):
            stack.enter_context(patch.object(backend, "load", _slow(backend.load, seconds)))
        yield


def _slow(load: Callable[..., Any], seconds: Mapping[str, float]) -> Callable[..., Any]:
    def slow(backend: Any, artifact: Path, function: str | None = None) -> Any:
        runner, name = load(backend, artifact, function), _name(artifact)
        added = sum(more for pattern, more in seconds.items() if fnmatchcase(name, pattern))
        return SlowRunner(runner, added) if added else runner

    return slow


def _name(artifact: Path) -> str:
    """The id of a shard that was built, else the package's name."""
    from pytest_ane.make.record import PACKAGE, BuildRecord

    if artifact.name == PACKAGE:
        return str(BuildRecord.read(artifact.parent).key.get("shard", ""))
    return artifact.stem
