"""Matrix products, and attention against torch's and written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from pytest_ane.mlprogram.errors import ExecutionError
from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same


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
    same("matmul", [9, 12, 15], x=f32([1, 2]), y=f32([[1, 2, 3], [4, 5, 6]]))


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 2, 4), (4, 3, 2, 4), (5, 1, 2, 3, 4)])
def test_operands_of_other_ranks(shape: tuple[int, ...]) -> None:
    """The shapes of the documentation among them."""
    x, y = noise(*shape), noise(10, 4, 3, seed=1)
    if len(shape) < 3:
        close("matmul", np.matmul(x.astype(np.float64), y), x=x, y=y)
    close("matmul", np.matmul(x.astype(np.float64), y[0]), x=x, y=y[0])
    close("matmul", np.matmul(x.astype(np.float64), y[0, :, 0]), x=x, y=y[0, :, 0])


def test_a_vector_is_not_transposed() -> None:
    x, y = f32([1, 2]), f32([[1, 2], [3, 4]])
    same("matmul", [5, 11], x=x, y=y, transpose_x=True, transpose_y=True)
    same("matmul", [7, 10], x=y, y=x, transpose_x=True, transpose_y=True)


def test_integers_are_exact() -> None:
    x = np.array([[2**24 + 1, 1]], np.int32)
    result = eval_op("matmul", x=x, y=np.array([[1], [1]], np.int32))
    assert result.tolist() == [[2**24 + 2]]
    assert result.dtype == np.int32
    same("linear", [[2**24 + 9]], x=x, weight=np.array([[1, 1]], np.int32),
         bias=np.array([7], np.int32))  # fmt: skip


def test_operands_of_other_types() -> None:
    """From iOS 17 on, constants may be of another type than the input."""
    same("matmul", [[4.5]], x=f32([[1.5, 1]]), y=np.array([[1], [3]], np.int32))
    same("linear", [[4.5, 2]], x=f32([[1.5, 1]]), weight=np.array([[1, 2], [0, 1]], np.int32),
         bias=np.array([1, 1], np.int32))  # fmt: skip


def test_nothing_to_sum() -> None:
    same("matmul", np.zeros((2, 3)), x=noise(2, 0), y=noise(0, 3))


def test_operands_that_do_not_fit() -> None:
    with pytest.raises(ExecutionError, match="matmul fails"):
        eval_op("matmul", x=noise(2, 3), y=noise(2, 3))


def test_linear() -> None:
    x, weight, bias = noise(2, 3, 4), noise(5, 4, seed=1), noise(5, seed=2)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    close("linear", torch.nn.functional.linear(*tensors), x=x, weight=weight, bias=bias)
    close("linear", torch.nn.functional.linear(*tensors[:2]), x=x, weight=weight)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 1, 3, 2, 4)])
def test_linear_of_any_rank(shape: tuple[int, ...]) -> None:
    x, weight, bias = noise(*shape), noise(5, 4, seed=1), noise(5, seed=2)
    expected = torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, bias)))
    close("linear", expected, x=x, weight=weight, bias=bias)


@pytest.mark.parametrize("bias", [noise(1), noise(1, 5)])
def test_a_bias_that_numpy_would_broadcast(bias: np.ndarray) -> None:
    with pytest.raises(ExecutionError, match="a bias"):
        eval_op("linear", x=noise(2, 4), weight=noise(5, 4), bias=bias)


@pytest.mark.parametrize(
    "equation",
    ["nchw,nwhu->nchu", "chw,whr->chr", "abcd,adce->abce", "vnm,mno->vno", "nchw, nwhu -> nchu",
     "NchW,NWhu->Nchu"],
)  # fmt: skip
def test_einsum(equation: str) -> None:
    left, right = equation.replace(" ", "").partition("->")[0].split(",")
    letters = dict.fromkeys(left + right)
    sizes = dict(zip(letters, (2, 3, 4, 5, 6), strict=False))
    x = noise(*(sizes[c] for c in left))
    y = noise(*(sizes[c] for c in right), seed=1)
    close("einsum", np.einsum(equation, x, y), values=(x, y), equation=equation)


@pytest.mark.parametrize(("n", "h"), [(1, 4), (2, 1), (1, 1)])
@pytest.mark.parametrize("swapped", [False, True])
def test_einsum_broadcasts(n: int, h: int, swapped: bool) -> None:
    sizes = ((n, h), (2, 4)) if not swapped else ((2, 4), (n, h))
    (n1, h1), (n2, h2) = sizes
    x, y = noise(n1, 3, h1, 5), noise(n2, 5, h2, 6, seed=1)
    expected = np.einsum("nchw,nwhu->nchu", np.broadcast_to(x, (2, 3, 4, 5)),
                         np.broadcast_to(y, (2, 5, 4, 6)))  # fmt: skip
    close("einsum", expected, values=(x, y), equation="nchw,nwhu->nchu")
    expected = np.einsum("chw,whr->chr", np.broadcast_to(x[0], (3, 4, 5)),
                         np.broadcast_to(y[0], (5, 4, 6)))  # fmt: skip
    if max(h1, h2) == 4:
        close("einsum", expected, values=(x[0], y[0]), equation="chw,whr->chr")


def test_einsum_does_not_broadcast_what_it_sums() -> None:
    with pytest.raises(ExecutionError, match="einsum fails"):
        eval_op("einsum", values=(noise(2, 3, 1), noise(5, 3, 4)), equation="chw,whr->chr")
    with pytest.raises(ExecutionError, match="rank 2 and 3"):
        eval_op("einsum", values=(noise(2, 3), noise(5, 3, 4)), equation="chw,whr->chr")


def test_other_equations() -> None:
    x, y = noise(2, 3), noise(4, 3, seed=1)
    close("einsum", x @ y.T, values=(x, y), equation="ij,kj->ik")


@given(hnp.mutually_broadcastable_shapes(signature="(m,k),(k,n)->(m,n)", max_dims=2, max_side=4))
def test_shapes_broadcast(shapes: hnp.BroadcastableShapes) -> None:
    x, y = (noise(*shape) for shape in shapes.input_shapes)
    close("matmul", (x.astype(np.float64) @ y), x=x, y=y)


ATTEND: Any = torch.nn.functional.scaled_dot_product_attention
NAME = "scaled_dot_product_attention"


def operands(*batch: int, length: int = 7, keys: int = 5) -> dict[str, Any]:
    """Queries of 16, values of 32."""
    return {"query": noise(*batch, length, 16), "key": noise(*batch, keys, 16, seed=1),
            "value": noise(*batch, keys, 32, seed=2)}  # fmt: skip


def torch_attention(inputs: dict[str, Any], mask: Any = None) -> Any:
    tensors = [torch.from_numpy(a) for a in inputs.values()]
    return ATTEND(
        *tensors, attn_mask=None if mask is None else torch.from_numpy(np.atleast_2d(mask))
    )


@pytest.mark.parametrize("batch", [(3,), (3, 2), (3, 2, 4)])
def test_as_torch(batch: tuple[int, ...]) -> None:
    inputs = operands(*batch)
    close(NAME, torch_attention(inputs), **inputs)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (7, 5), (1, 1, 5), (2, 1, 5), (3, 1, 7, 5)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    inputs = operands(3, 2)
    added = noise(*shape, seed=3)
    close(NAME, torch_attention(inputs, added), attn_mask=added, **inputs)
    seen = added > -0.5
    seen[..., 0] = True
    close(NAME, torch_attention(inputs, seen), attn_mask=seen, **inputs)
    hidden = np.where(seen, 0, -np.inf).astype(np.float32)
    close(NAME, torch_attention(inputs, seen), attn_mask=hidden, **inputs)


def test_true_takes_part() -> None:
    inputs = operands(1, length=1, keys=3)
    close(NAME, inputs["value"][:, 1:2], attn_mask=np.array([False, True, False]), **inputs)


def test_written_out() -> None:
    """Scores 2 and 0 over sqrt(4)."""
    query, key = f32([[[2, 0, 0, 0]]]), f32([[[1, 0, 0, 0], [0, 1, 0, 0]]])
    a = np.e / (np.e + 1)
    close(NAME, [[[10 * a + 20 * (1 - a)]]], query=query, key=key, value=f32([[[10], [20]]]))


def test_large_scores_do_not_overflow() -> None:
    query, key = f32([[[1e4]]]), f32([[[1e4], [-1e4]]])
    close(NAME, [[[1]]], query=query, key=key, value=f32([[[1], [2]]]))
    close(NAME, [[[1]]], query=-query, key=-key, value=f32([[[1], [2]]]))


def test_a_row_without_any_position() -> None:
    inputs = operands(1, length=2)
    mask = np.array([[True] * 5, [False] * 5])
    result = eval_op(NAME, attn_mask=mask, **inputs)
    assert np.isfinite(result[0, 0]).all()
    assert np.isnan(result[0, 1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_type_stays_and_so_do_the_operands(dtype: Any) -> None:
    inputs = {k: v.astype(dtype) for k, v in operands(2).items()}
    before = {k: v.copy() for k, v in inputs.items()}
    result = eval_op(NAME, attn_mask=np.ones((7, 5), bool), **inputs)
    assert result.dtype == dtype
    assert all(np.array_equal(before[k], v) for k, v in inputs.items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": noise(7, 16)}, "of one rank, at least 3"),
        ({"key": noise(1, 5, 16)}, "the batch differs"),
        ({"key": noise(2, 5, 8)}, "the embedding or"),
        ({"value": noise(2, 4, 32)}, "the sequence length differs"),
        ({"attn_mask": noise(7, 1)}, "does not broadcast"),
        ({"attn_mask": noise(3, 7, 5)}, "broadcast"),
        ({"attn_mask": noise(2, 2, 7, 5)}, "does not broadcast"),
    ],
)
def test_what_does_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        eval_op(NAME, **{**operands(2), **changed})
