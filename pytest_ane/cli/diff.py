"""`pytest-ane diff`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ane.cli.arrays import read_inputs
from pytest_ane.core.errors import ExecutionError

if TYPE_CHECKING:
    from pytest_ane.analysis.operations import ProgramDiff
    from pytest_ane.mil.records import MLModel

_SHOWN = 10


def run(
    first: Path, second: Path, inputs: Sequence[str], tolerance: float, seed: int
) -> Iterator[str]:
    """Compare two packages operation by operation and name the first that differs.

    Raises:
        ExecutionError: it differs beyond the tolerance, so that the exit code says so too.
    """
    from pytest_ane.analysis.operations import diff_programs
    from pytest_ane.mil import read_model

    if not tolerance >= 0:
        raise ExecutionError(f"--tolerance {tolerance:g}: give a number from 0.")
    a, b = read_model(first), read_model(second)
    given = read_inputs(inputs) if inputs else _seeded(a, seed)
    found = diff_programs(a, b, given)
    yield from _table(found, tolerance)
    if (worst := found.first_beyond(tolerance)) is not None:
        raise ExecutionError(
            f"{worst.op} {worst.name!r} is the first operation that differs by more than "
            f"{tolerance:g}: {worst.note or f'relative difference {worst.relative:.3g}'}."
        )
    yield f"no operation differs by more than {tolerance:g}"


def _seeded(model: MLModel, seed: int) -> dict[str, Any]:
    from pytest_ane.probes.package import seeded_inputs

    return seeded_inputs(model.inputs, Path(model.path), seed)


def _table(found: ProgramDiff, tolerance: float) -> Iterator[str]:
    """The operations that differ most, in program order, and what could not be compared."""
    ranked = sorted(found.differences, key=lambda d: -(d.relative if d.relative >= 0 else 1e300))
    chosen = {d.name for d in ranked[:_SHOWN] if d.relative != 0}
    width = max((len(d.name) for d in found.differences if d.name in chosen), default=0)
    for d in found.differences:
        if d.name in chosen:
            mark = "!" if d.beyond(tolerance) else " "
            said = d.note or f"relative {d.relative:.3g}, largest {d.largest:.3g}"
            yield f"{mark} {d.name:{width}}  {d.op:20} {said}"
    yield f"{len(found.differences)} operations compared, by name" + _unmatched(found)


def _unmatched(found: ProgramDiff) -> str:
    count = len(found.only_first) + len(found.only_second)
    if not count:
        return ""
    return f"; {len(found.only_first)} only in the first, {len(found.only_second)} in the second"
