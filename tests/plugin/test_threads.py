"""Threads are chosen where the user has not."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_ane.plugin import threads
from tests.plugin.conftest import Project

NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "PYTEST_XDIST_WORKER_COUNT"):
        # Set first, so that what the code under test sets is undone as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "numpy"})


def test_one_process_leaves_all_cores_to_torch_and_one_to_numpy() -> None:
    threads.choose()
    assert [os.environ[name] for name in NAMES] == ["1", "8", "0"]


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    threads.choose()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    threads.choose()
    assert [os.environ[name] for name in NAMES] == ["4", "4", "0"]


def test_a_conftest_that_imports_numpy_is_not_too_early(project: Project) -> None:
    """In a process of its own, for how many threads numpy has is said once."""
    for name in NAMES:
        os.environ.pop(name, None)
    pytester = project.packages(good="none").pytester
    pytester.makeconftest("import numpy")
    pytester.makepyfile(
        """
        import os
        from threadpoolctl import threadpool_info

        def test_threads():
            assert {one["num_threads"] for one in threadpool_info()} == {1}
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        """
    )
    result = pytester.runpytest_subprocess("--ane-shards=all", "-k", "test_threads")
    result.assert_outcomes(passed=1, deselected=4)
