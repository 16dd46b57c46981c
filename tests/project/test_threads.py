"""Threads are chosen where the user has not."""

from __future__ import annotations

import os
import sys

import pytest

from pytest_ane.project import process as threads

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
