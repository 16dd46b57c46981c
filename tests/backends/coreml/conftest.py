"""A Mac that is not there, and backends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_ane.backends import CoreMLBackend
from pytest_ane.backends.coreml.process import Device
from pytest_ane.mac.testing import Mac, Replayer, Script
from pytest_ane.make import Cache

Backend = Callable[..., CoreMLBackend]


@pytest.fixture
def mac() -> Iterator[Callable[[Script], None]]:
    """`mac(script)`: from now on this is such a Mac; the one before is gone."""
    with ExitStack() as stack:

        def become(script: Script) -> None:
            stack.close()
            stack.enter_context(Replayer(script))

        yield become


@pytest.fixture
def said() -> list[str]:
    """What backends said."""
    return []


@pytest.fixture
def backend(mac: Callable[[Script], None], tmp_path: Path, said: list[str]) -> Backend:
    """A backend in a new process, so to speak: `backend(*failures, build=..., compiler=...)`.

    Without Xcode unless a compiler is named: the one of the system answers in this process.
    """

    def make(*failures: object, units: str = "CPU_AND_NE", **machine: str | int) -> CoreMLBackend:
        mac(Script(Mac(**{"compiler": "", **machine}), failures=failures))
        cache = Cache(tmp_path / "cache", notify=said.append)
        return CoreMLBackend(cache, units, said.append, device=Device(timeout=None))

    return make


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[], list[Path]]:
    """All compiled models in the cache."""
    return lambda: sorted((tmp_path / "cache" / "compiled").glob("*/model.mlmodelc"))
