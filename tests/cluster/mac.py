"""`python -m tests.cluster.mac ...`: `pytest-ane ...` on a replayed Mac."""

from __future__ import annotations

import sys

from pytest_ane.mac.testing import Replayer, Script

_installed = Replayer(Script())


def dask_setup(worker: object) -> None:
    """In the worker's own process too, which is not forked."""
    _installed.__enter__()


if __name__ == "__main__":
    from pytest_ane.cli import main

    with Replayer(Script()):
        sys.exit(main(sys.argv[1:]))
