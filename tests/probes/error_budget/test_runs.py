"""Calls on states: what goes back finds recurrent states as they were, and others as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.probes.cases import Case
from pytest_ane.probes.error_budget.runs import run_cases
from tests.backends.coreml.test_runner import counter


def case(*steps: float, **of: object) -> Case:
    calls = tuple({"x": np.full(2, step, np.float32)} for step in steps)
    return Case("rewrite", "r", calls, lambda outputs: {"y": outputs["y"][None]}, {}, 1, 1.0, **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of", "sums"),
    [
        ({}, [1, 3, 8]),
        ({"recurrent": ("s",), "restored": {2: 1}}, [1, 3, 6]),
        ({"recurrent": ("s",), "restored": {2: 0}}, [1, 3, 5]),
        ({"states": {"s": np.ones(2)}}, [2, 4, 9]),
    ],
)
def test_sums(tmp_path: Path, of: dict[str, object], sums: list[float]) -> None:
    runner = CpuBackend().load(counter(tmp_path))
    # Another sequence at the same time, on a state of its own.
    mine, other = run_cases(runner, [case(1, 2, 5, **of), case(7, 7)])
    assert mine.rows["y"][:, 0].tolist() == sums
    assert other.rows["y"][:, 0].tolist() == [7, 14]
