"""Set-up of every run in this checkout: kept free of plugins and heavy imports."""

from __future__ import annotations

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent / "tests"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The project's own tests have no gates: a run of gates alone need not collect them."""
    gates_alone = config.option.markexpr in ("gate", "bench")
    return True if gates_alone and _TESTS in collection_path.parents else None
