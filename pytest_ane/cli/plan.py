"""`pytest-ane plan`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def run(file: Path, package: Path | None) -> Iterator[str]:
    """What a recorded plan says, and the operations that are not on the ANE."""
    from pytest_ane.gates.placement.plans import explain, join, read_plan

    plan = read_plan(file)
    if package is not None:
        from pytest_ane.mil import read_model

        plan = join(plan, read_model(package, weights=False))
    yield from explain(plan)
