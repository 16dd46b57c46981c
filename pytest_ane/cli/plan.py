"""`pytest-ane plan`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_ane.cli.explain import terminal_width


def run(file: Path, package: Path | None) -> Iterator[str]:
    """What a recorded plan says, and the operations that are not on the ANE."""
    from pytest_ane.gates.placement.plans import join, read_plan
    from pytest_ane.report.placement import explain_plan

    plan = read_plan(file)
    if package is not None:
        from pytest_ane.mil import read_model

        plan = join(plan, read_model(package, weights=False))
    yield from explain_plan(plan, terminal_width())
