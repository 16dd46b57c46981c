"""SIGTERM calls what is to end the process, while a block runs."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pytest_ane.project.process import on_terminate

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


class _EndError(Exception):
    pass


def end() -> None:
    raise _EndError


def test_it_ends_the_block_and_is_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(_EndError), on_terminate(end):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_that_is_there_already_stays() -> None:
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        with on_terminate(end):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [signal.SIGTERM]


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
