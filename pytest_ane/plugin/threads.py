"""Threads of numpy and torch, chosen deliberately.

Their threads spin while they wait, so that two busy processes on one machine slow each other down
many times over. A gate multiplies small matrices: measured on two cores with another process
running, the behaviour gate took 12 s with one BLAS thread and 37 to 73 s with two. The libraries
read these variables when they are first imported, which is after the plugin was configured.
"""

from __future__ import annotations

import os


def choose() -> None:
    """One thread for numpy, torch's share of the cores for torch; what the user has set is kept."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = max(1, (os.cpu_count() or 1) // workers)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(share))
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
