"""SIGTERM calls what is to end the process; threads are chosen where the user has not."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from pytest_ane.project.process import choose, on_terminate

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


class _EndError(Exception):
    pass


def end() -> None:
    raise _EndError


@POSIX
def test_it_ends_the_block_and_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(_EndError), on_terminate(end):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@POSIX
def test_a_handler_that_is_there_already_stays() -> None:
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        with on_terminate(end):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [signal.SIGTERM]


@POSIX
def test_outside_of_the_main_thread_nothing_is_changed() -> None:
    handlers = []

    def look() -> None:
        with on_terminate(end):
            handlers.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_ends_by_the_signal() -> None:
    with on_terminate(end):
        child = os.fork()
        if not child:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "PYTEST_XDIST_WORKER_COUNT"):
        # Set first, so that what the code under test sets is undone as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(sys, "modules", {k: v for k, v in sys.modules.items() if k != "numpy"})


@pytest.mark.usefixtures("clean")
def test_one_process_leaves_all_cores_to_torch_and_one_to_numpy() -> None:
    choose()
    assert [os.environ[name] for name in NAMES] == ["1", "8", "0"]


@pytest.mark.usefixtures("clean")
def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    choose()
    assert os.environ["OMP_NUM_THREADS"] == "2"


@pytest.mark.usefixtures("clean")
def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    choose()
    assert [os.environ[name] for name in NAMES] == ["4", "4", "0"]
