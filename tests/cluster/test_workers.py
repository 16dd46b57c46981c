"""Dask's client as a run has it, at a real scheduler in this process."""

from __future__ import annotations

import gc
from concurrent.futures import TimeoutError as NotYetError

import pytest
from distributed import LocalCluster

from pytest_ane.cluster.workers import Workers


def test_a_result_that_is_lost_when_nobody_waits_for_it_any_more_prints_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LocalCluster(n_workers=0, protocol="tcp", dashboard_address=":0") as site:
        workers = Workers(site.scheduler_address, timeout=10, say=print)
        client = workers._client
        future = client.submit(int)
        with pytest.raises(NotYetError):
            client.sync(client._gather, [future], callback_timeout=0.1)
        future.cancel()
        workers.close()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
