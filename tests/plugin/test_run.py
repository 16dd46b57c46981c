"""The id that all processes of a run share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_ane.plugin._process import is_worker, run_id, send_id, worker


def config(**more: Any) -> pytest.Config:
    return cast("pytest.Config", SimpleNamespace(stash=pytest.Stash(), **more))


def test_workers_have_the_name_of_the_run_that_started_them() -> None:
    controller = config()
    given: dict[str, Any] = {"workerid": "gw3"}
    send_id(given, controller)
    started = config(workerinput=given)
    assert run_id(started) == run_id(controller) == run_id(controller)
    assert (is_worker(controller), is_worker(started)) == (False, True)
    assert (worker(controller), worker(started)) == ("main", "gw3")
    assert run_id(config()) != run_id(controller)
