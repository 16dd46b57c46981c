"""Inputs of a timed call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.records import DType, Feature
from pytest_ane.models.families._layout import AneLayout
from pytest_ane.plugin._stopwatch import hidden_inputs, package_inputs
from tests.models.families.rotary import plain_rotary

FILE = Path("some.mlpackage")


@pytest.fixture(autouse=True)
def _no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no package behind these inputs that could imply anything."""
    monkeypatch.setattr("pytest_ane.probes.domains.derived", lambda *_: {})


def feature(name: str = "x", shape: tuple[int, ...] = (1, 8, 4, 1), high: int = 0) -> Feature:
    """An input whose third axis goes from 1 to `high`, if that is given."""
    ranges = tuple((1 if i == 2 else d, high if i == 2 else d) for i, d in enumerate(shape))
    return Feature(name, DType.FP16, shape, ranges if high else ())


def test_hidden_states_have_rms_1_and_are_the_same_every_time() -> None:
    layout = AneLayout("llama", 32, plain_rotary(8, 1e4), context=16)
    call = hidden_inputs(layout, 4)
    assert call.tokens == 4
    assert call.inputs["x"].shape == (1, 32, 4, 1)
    assert call.inputs["mask"].shape == call.inputs["write"].shape == (1, 1, 4, 16)
    assert np.sqrt(np.mean(call.inputs["x"] ** 2)) == pytest.approx(1, rel=1e-3)
    again = hidden_inputs(layout, 4)
    assert all(np.array_equal(a, again.inputs[name]) for name, a in call.inputs.items())


def test_flexible_packages_and_enumerated_shapes_at_both_ends() -> None:
    features = (feature(high=16), feature("mask", (1, 1, 4, 4), high=16))
    assert package_inputs(features, FILE, "max").tokens == 16
    assert package_inputs(features, FILE, 1).inputs["x"].shape == (1, 8, 1, 1)
    shapes = ((1, 8, 4, 1), (1, 8, 12, 1))
    features = (Feature("x", DType.FP16, shapes[0], (), shapes),)
    assert package_inputs(features, FILE, "max").tokens == 12
    assert package_inputs(features, FILE, 4).tokens == 4


def test_shapes_that_are_fixed_or_of_different_lengths_tell_no_t() -> None:
    features = (feature(high=16), feature("y", high=12))
    assert package_inputs(features, FILE, "max").tokens == 0
    assert package_inputs((feature(),), FILE, "max").tokens == 0
    with pytest.raises(ExecutionError, match="takes inputs of fixed shapes; time 'max'"):
        package_inputs((feature(),), FILE, 1)
    with pytest.raises(ExecutionError, match="cannot be timed at T=2, for it takes 1 at least"):
        package_inputs((feature(high=16),), FILE, 2)
