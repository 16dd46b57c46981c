"""Multiply-accumulates against literal examples and torch's own counter of operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from pytest_ane.tools._costs import macs


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("op", "parameters", "result", "expected"),
    [
        ("conv", {"x": ones(1, 8, 4, 1), "weight": ones(16, 8, 1, 1)}, (1, 16, 4, 1), 512),
        ("conv", {"x": ones(1, 8, 5, 1), "weight": ones(8, 1, 2, 1)}, (1, 8, 4, 1), 64),
        ("conv_transpose", {"x": ones(1, 3, 5), "weight": ones(3, 4, 2)}, (1, 4, 6), 120),
        ("linear", {"x": ones(2, 3), "weight": ones(5, 3)}, (2, 5), 30),
        ("matmul", {"x": ones(2, 3), "y": ones(3, 4)}, (2, 4), 24),
        ("matmul", {"x": ones(3, 2), "y": ones(3, 4), "transpose_x": True}, (2, 4), 24),
        ("matmul", {"x": ones(3), "y": ones(3, 4), "transpose_x": True}, (4,), 12),
        (
            "einsum",
            {"values": [ones(1, 2, 3, 4), ones(1, 4, 3, 5)], "equation": "nchw, nwhu -> nchu"},
            (1, 2, 3, 5),
            120,
        ),
        (
            "scaled_dot_product_attention",
            {"query": ones(1, 2, 3, 8), "key": ones(1, 2, 5, 8), "value": ones(1, 2, 5, 4)},
            (1, 2, 3, 4),
            2 * 3 * 5 * (8 + 4),
        ),
        (
            "lstm",
            {"x": ones(7, 2, 3), "weight_ih": ones(16, 3), "weight_hh": ones(16, 4), "bias": None},
            (7, 2, 4),
            7 * 2 * (16 * 3 + 16 * 4),
        ),
        ("softmax", {"x": ones(9, 9)}, (9, 9), 0),
    ],
)
def test_examples(
    op: str, parameters: dict[str, Any], result: tuple[int, ...], expected: int
) -> None:
    assert macs(op, parameters, result) == expected


def flops(call: Any) -> tuple[int, tuple[int, ...]]:
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        shape = tuple(call().shape)
    return counter.get_total_flops(), shape


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_convolutions_as_torch_counts_them(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, each, kernel = draw(1, 3), draw(1, 3), draw(1, 3)
    x = ones(draw(1, 2), groups * each, draw(3, 6), draw(3, 6))
    weight = ones(groups * draw(1, 3), each, kernel, draw(1, 3))
    total, shape = flops(
        lambda: F.conv2d(
            torch.from_numpy(x), torch.from_numpy(weight), stride=draw(1, 2), groups=groups
        )
    )
    assert 2 * macs("conv", {"x": x, "weight": weight}, shape) == total


@settings(max_examples=25, deadline=None)
@given(*[st.integers(1, 5)] * 4)
def test_products_as_torch_counts_them(batch: int, rows: int, inner: int, columns: int) -> None:
    x, y = ones(batch, rows, inner), ones(batch, inner, columns)
    total, shape = flops(lambda: torch.bmm(torch.from_numpy(x), torch.from_numpy(y)))
    assert 2 * macs("matmul", {"x": x, "y": y}, shape) == total
    weight = ones(columns, inner)
    total, shape = flops(lambda: F.linear(torch.from_numpy(x), torch.from_numpy(weight)))
    assert 2 * macs("linear", {"x": x, "weight": weight}, shape) == total
