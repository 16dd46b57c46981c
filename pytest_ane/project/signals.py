"""SIGTERM as a clean end: a CI that cancels a job sends it, and Python would leave all files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + int(signal.SIGTERM)
"""Exit code of a process that SIGTERM ended, as shells have it: 143."""


@contextmanager
def on_terminate(end: Callable[[], Any]) -> Iterator[None]:
    """While the block runs, let SIGTERM call `end`, which raises; then do as before.

    Nothing is changed where Python allows no handlers, outside of the main thread, or where there
    is a handler already. A forked process ends as if there were none.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() == process:
            # A second signal, such as one sent to a group and passed on, must not end the cleaning.
            signal.signal(number, signal.SIG_IGN)
            end()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
