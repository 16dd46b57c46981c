"""Matrix products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from tests.reference.ops.oracle import close, f32, noise, same


def test_matmul() -> None:
    same("matmul", [[17], [39]], x=f32([[1, 2], [3, 4]]), y=f32([[5], [6]]))


@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("transpose_y", [False, True])
def test_matmul_transposed(transpose_x: bool, transpose_y: bool) -> None:
    x, y = noise(3, 1, 4, 5), noise(1, 2, 5, 6, seed=1)
    expected = x @ y
    close("matmul", expected, x=x.swapaxes(-1, -2).copy() if transpose_x else x,
          y=y.swapaxes(-1, -2).copy() if transpose_y else y,
          transpose_x=transpose_x, transpose_y=transpose_y)  # fmt: skip


def test_vectors() -> None:
    close("matmul", 32, x=f32([1, 2, 3]), y=f32([4, 5, 6]))
    close("matmul", [14, 32], x=f32([[1, 2, 3], [4, 5, 6]]), y=f32([1, 2, 3]))


def test_linear() -> None:
    x, weight, bias = noise(2, 3, 4), noise(5, 4, seed=1), noise(5, seed=2)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    close("linear", torch.nn.functional.linear(*tensors), x=x, weight=weight, bias=bias)
    close("linear", torch.nn.functional.linear(*tensors[:2]), x=x, weight=weight)


@pytest.mark.parametrize("equation", ["nchw,nwhu->nchu", "chw,whr->chr"])
def test_einsum(equation: str) -> None:
    sizes = dict(zip("nchwur", (2, 3, 4, 5, 6, 7), strict=True))
    left, right = equation.partition("->")[0].split(",")
    x = noise(*(sizes[c] for c in left))
    y = noise(*(sizes[c] for c in right), seed=1)
    close("einsum", np.einsum(equation, x, y), values=(x, y), equation=equation)


@given(hnp.mutually_broadcastable_shapes(signature="(m,k),(k,n)->(m,n)", max_dims=2, max_side=4))
def test_shapes_broadcast(shapes: hnp.BroadcastableShapes) -> None:
    x, y = (noise(*shape) for shape in shapes.input_shapes)
    close("matmul", (x.astype(np.float64) @ y), x=x, y=y)
