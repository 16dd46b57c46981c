"""What stands in for an operation has the shape of the operation's result."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.analysis.costs import count_costs
from pytest_ane.analysis.costs.standins import STAND_INS, zeros
from pytest_ane.mil import read_model
from pytest_ane.reference import eval_op
from tests.packages import save_conv


def test_a_product_is_not_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stood_in: list[tuple[int, ...]] = []
    conv = STAND_INS["conv"]

    def counted(**parameters: Any) -> Any:
        stood_in.append(np.shape(parameters["weight"]))
        return conv(**parameters)

    monkeypatch.setitem(cast("dict[str, Any]", STAND_INS), "conv", counted)
    save_conv(tmp_path / "conv.mlpackage")
    count_costs(read_model(tmp_path / "conv.mlpackage"))
    assert len(stood_in) == 1


def check(op: str, **parameters: Any) -> None:
    assert STAND_INS[op](**parameters).shape == eval_op(op, **parameters).shape


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_conv(data: st.DataObject) -> None:
    groups, each = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(2)]
    check(
        "conv",
        x=np.ones((2, groups * each, 7, 6), np.float32),
        weight=np.ones((groups * 3, each, *kernel), np.float32),
        bias=np.ones(groups * 3, np.float32),
        groups=groups,
        pad_type=data.draw(st.sampled_from(["valid", "same", "same_lower", "custom"])),
        pad=np.array([1, 0, 2, 1], np.int32),
        strides=np.array([data.draw(st.integers(1, 2)), 1], np.int32),
        dilations=np.array([1, data.draw(st.integers(1, 2))], np.int32),
    )


@pytest.mark.parametrize(
    ("x", "y", "turned"),
    [
        ((2, 3), (3, 4), (False, False)),
        ((3, 2), (4, 3), (True, True)),
        ((5, 1, 2, 3), (6, 3, 4), (False, False)),
        ((3,), (5, 3, 4), (False, False)),
        ((2, 3), (3,), (False, True)),
        ((3,), (3,), (True, True)),
    ],
)
def test_matmul(x: tuple[int, ...], y: tuple[int, ...], turned: tuple[bool, bool]) -> None:
    ones = [np.ones(shape, np.float32) for shape in (x, y)]
    check("matmul", x=ones[0], y=ones[1], transpose_x=turned[0], transpose_y=turned[1])


def test_linear() -> None:
    check("linear", x=np.ones((2, 5, 3), np.float32), weight=np.ones((4, 3), np.float32))


def test_zeros_take_no_memory() -> None:
    assert zeros((1 << 20, 1 << 20)).strides == (0, 0)
