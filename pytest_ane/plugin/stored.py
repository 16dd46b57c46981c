"""Stored runs that a run will be compared with, looked at before anything is built or timed."""

from __future__ import annotations

import pytest

from pytest_ane.core.errors import AneError


def refuse_damaged(config: pytest.Config) -> None:
    """Refuse `--benchmark-compare` with a run that is damaged or does not exist.

    To be called before pytest-benchmark is configured: it would end in a traceback.

    Raises:
        pytest.UsageError: with the sentence.
    """
    given = config.getoption("benchmark_compare", None)
    if not given:
        return
    from pytest_ane.gates.throughput.storage import check, open_storage

    try:
        storage = open_storage(config.getoption("benchmark_storage"))
        check(storage, given if isinstance(given, str) else None)
    except AneError as error:
        raise pytest.UsageError(str(error)) from None
