"""The way from `[T, C]` to a shard's inputs and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.models.families.layout import AneLayout, Rotary
from pytest_ane.models.families.llama import FAMILY
from tests.models.families.llama.tiny import tiny_model

SMALL = AneLayout("llama", 3, Rotary.plain(2, 100.0))


def test_inputs_of_a_stateful_block() -> None:
    stateful = AneLayout("llama", 3, Rotary.plain(2, 100.0), 4)
    inputs = stateful.inputs(np.ones((2, 3), np.float32), start=1)
    assert {name: array.shape for name, array in inputs.items()} == {
        "x": (1, 3, 2, 1),
        "cos": (1, 1, 2, 2),
        "sin": (1, 1, 2, 2),
        "mask": (1, 1, 2, 4),
        "write": (1, 1, 2, 4),
    }
    np.testing.assert_allclose(inputs["cos"][0, 0, 0], [math.cos(1), math.cos(2)], rtol=1e-6)


def test_positions_beyond_the_state() -> None:
    stateful = AneLayout("llama", 3, Rotary.plain(2, 100.0), 4)
    with pytest.raises(ExecutionError) as error:
        stateful.inputs(np.ones((2, 3), np.float32), start=3)
    assert str(error.value) == (
        "positions 3 to 4 do not fit a state of 4; raise context in shards.toml or shorten the "
        "prompt."
    )


def test_a_head_takes_x_alone() -> None:
    head = AneLayout("llama", 3)
    assert set(head.inputs(np.ones((2, 3), np.float32))) == {"x"}


def test_inputs_of_two_positions() -> None:
    inputs = SMALL.inputs(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))
    assert {name: array.shape for name, array in inputs.items()} == {
        "x": (1, 3, 2, 1),
        "cos": (1, 1, 2, 2),
        "sin": (1, 1, 2, 2),
        "mask": (1, 1, 2, 2),
    }
    assert inputs["x"][0, :, 0, 0].tolist() == [1, 2, 3]
    assert inputs["x"][0, :, 1, 0].tolist() == [4, 5, 6]
    assert inputs["mask"][0, 0].tolist() == [[0, -1e4], [0, 0]]
    np.testing.assert_allclose(inputs["cos"][0, 0, :, 1], math.cos(1), rtol=1e-6)


@given(st.integers(1, 9), st.integers(1, 9))
def test_hidden_states_come_back(length: int, width: int) -> None:
    hidden = np.arange(length * width, dtype=np.float32).reshape(length, width)
    host = AneLayout("llama", width, Rotary.plain(2, 100.0))
    back = host.output({"y": host.inputs(hidden)["x"]})
    np.testing.assert_array_equal(back, hidden)
    assert back.flags.c_contiguous


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        ({"z": np.zeros((1, 3, 2, 1))}, "z [1, 3, 2, 1]"),
        ({"y": np.zeros((1, 3))}, "y [1, 3]"),
        ({"y": np.zeros((1, 3, 1, 2))}, "y [1, 3, 1, 2]"),
        ({}, "nothing"),
    ],
)
def test_another_family_s_outputs(outputs: dict[str, np.ndarray], given: str) -> None:
    with pytest.raises(ExecutionError) as error:
        SMALL.output(outputs)
    assert str(error.value) == (
        f"A shard of family 'llama' gives y [1, C, T, 1], this one {given}; is it another family's "
        "artifact?"
    )


def test_a_layout_is_rebuilt_from_a_description() -> None:
    described = tiny_model().description
    assert FAMILY.layout(described, "L00") == tiny_model().layout("L00")
    assert FAMILY.layout(described, "head.0").sees == "itself"
    stateful = FAMILY.layout(described | {"context": 9}, "L00")
    assert (stateful.sees, stateful.context) == ("state", 9)
