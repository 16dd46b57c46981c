"""What is due to a process: a clean end on SIGTERM, and threads of numpy and torch.

A CI that cancels a job sends SIGTERM, on which Python would leave all files. Threads spin while
they wait: measured on two cores with another process running, the behaviour gate took 12 s with one
BLAS thread and 37 to 73 s with two. The libraries read these variables when they are first
imported, mostly after the plugin was configured.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + int(signal.SIGTERM)
"""Exit code of a process that SIGTERM ended, as shells have it: 143."""


@contextmanager
def on_terminate(end: Callable[[], Any]) -> Iterator[None]:
    """While the block runs, let SIGTERM call `end`, which raises; then do as before.

    Nothing is changed outside of the main thread, or where there is a handler already.
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


def in_ci() -> bool:
    """Whether the variable CI is set, as CI services do, to anything but `0` and `false`."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def choose() -> None:
    """One thread for numpy, torch's share of the cores for torch; what the user has set is kept."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = max(1, (os.cpu_count() or 1) // workers)
    too_late = "numpy" in sys.modules and "OPENBLAS_NUM_THREADS" not in os.environ
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    if too_late and (count := os.environ["OPENBLAS_NUM_THREADS"].partition(",")[0]).isdigit():
        from threadpoolctl import threadpool_limits

        threadpool_limits(int(count), user_api="blas")
