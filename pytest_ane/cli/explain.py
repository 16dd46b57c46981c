"""`pytest-ane explain`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def run(package: Path, os: str) -> Iterator[str]:
    """What the placement forecast says of a package, op by op where it matters."""
    from pytest_ane.digests import tree_bytes
    from pytest_ane.mil import read_model
    from pytest_ane.placement import explain, forecast

    model = read_model(package, weights=False)
    yield from explain(forecast(model, size_bytes=tree_bytes(package)), os=os)
