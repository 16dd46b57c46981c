"""Threads of numpy and torch, chosen deliberately.

Their threads spin while they wait, so that two busy processes on one machine slow each other down
many times over. A gate multiplies small matrices: measured on two cores with another process
running, the behaviour gate took 12 s with one BLAS thread and 37 to 73 s with two. The libraries
read these variables when they are first imported. Mostly that is after the plugin was configured; a
`conftest.py` that imports numpy is sooner.
"""

from __future__ import annotations

import os
import sys


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
