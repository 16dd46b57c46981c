"""States are copied out and given back, on either backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ane.backends import CpuBackend
from pytest_ane.mlprogram.errors import ExecutionError
from tests.backends.coreml.test_runner import counter

ONES = {"x": np.ones(2, np.float32)}


@pytest.fixture(params=["cpu", "coreml"])
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return CpuBackend if request.param == "cpu" else request.getfixturevalue("backend")


@pytest.mark.parametrize("names", [None, ("s",)])
def test_states_are_given_back(
    make: Callable[[], Any], tmp_path: Path, names: tuple[str, ...] | None
) -> None:
    runner = make().load(counter(tmp_path))
    state = runner.make_state()
    runner.predict(ONES, state)
    kept = runner.read_states(state, names)
    runner.predict(ONES, state)
    assert kept["s"].tolist() == [1, 1]
    runner.write_states(state, kept)
    assert runner.predict(ONES, state)["y"].tolist() == [2, 2]
    assert kept["s"].tolist() == [1, 1]
    assert runner.read_states(state, ()) == {}


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ({"t": np.ones(2)}, "there is no state 't'; states are: s."),
        ({"s": np.ones(3)}, "'s': a state .* cannot take shape \\[3\\]"),
    ],
)
def test_states_that_are_not_the_program_s(
    tmp_path: Path, states: dict[str, np.ndarray], sentence: str
) -> None:
    runner = CpuBackend().load(counter(tmp_path))
    with pytest.raises(ExecutionError, match=sentence):
        runner.write_states(runner.make_state(), states)
