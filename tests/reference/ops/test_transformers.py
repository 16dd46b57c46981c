"""Attention against torch's, and written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pytest_ane.core.errors import ExecutionError
from pytest_ane.reference import eval_op
from tests.reference.ops.oracle import close, f32, noise

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
