"""Threads of numpy and torch, chosen deliberately.

OpenMP threads spin while they wait, so workers that each start one per core slow each other down
many times over. The libraries read these variables when they are first imported, which is after
the plugin was configured.
"""

from __future__ import annotations

import os

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def share() -> None:
    """Give each xdist worker its share of the cores; whatever the user has set is kept."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        for name in _VARIABLES:
            os.environ.setdefault(name, threads)
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
