"""Which process of a run this is, with xdist and without."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

_ID = "ane_run"
_KEY = pytest.StashKey[str]()


def run_id(config: pytest.Config) -> str:
    """The run's id: the same in the process that started it and in all xdist workers."""
    received = getattr(config, "workerinput", {}).get(_ID)
    return str(received or config.stash.setdefault(_KEY, uuid.uuid4().hex))


def send_id(workerinput: dict[str, Any], config: pytest.Config) -> None:
    """Give a worker that is about to start the run's id."""
    workerinput[_ID] = run_id(config)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is an xdist worker."""
    return hasattr(config, "workerinput")


def worker(config: pytest.Config) -> str:
    """`gw0`, or `main` without xdist."""
    return str(getattr(config, "workerinput", {}).get("workerid", "main"))
