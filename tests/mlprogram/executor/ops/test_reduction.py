"""Reductions, running sums and normalisation layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import arrays, case, close, f32, noise, same

X = f32([[1, -2], [3, 4]])

FORMULAS: dict[str, Any] = {
    "l1_norm": lambda x, **k: np.abs(x).sum(**k),
    "l2_norm": lambda x, **k: np.sqrt((x**2).sum(**k)),
    "log_sum_exp": lambda x, **k: np.log(np.exp(x).sum(**k)),
    "max": np.max,
    "mean": np.mean,
    "min": np.min,
    "prod": np.prod,
    "sum": np.sum,
    "sum_square": lambda x, **k: (x**2).sum(**k),
}


def test_log_sum_exp_of_extremes() -> None:
    close("reduce_log_sum_exp", 1000 + np.log(2), x=f32([1000, 1000]))
    same("reduce_log_sum_exp", f32(-np.inf), x=f32([-np.inf, -np.inf]))
    same("reduce_log_sum_exp", f32(np.inf), x=f32([np.inf, 0]))
    close("reduce_log_sum", np.log(6), x=X)


@pytest.mark.parametrize("op", sorted(FORMULAS))
def test_nan_is_never_lost(op: str) -> None:
    x = f32([1, np.nan, 2])
    assert np.isnan(eval_op(f"reduce_{op}", x=x))


@pytest.mark.drawn
@pytest.mark.parametrize("op", sorted(FORMULAS))
@given(data=st.data())
def test_as_the_formula_in_float64(op: str, data: st.DataObject) -> None:
    x = data.draw(arrays(4))
    axes = data.draw(st.lists(st.integers(0, x.ndim - 1), min_size=1, unique=True))
    keep = data.draw(st.booleans())
    expected = FORMULAS[op](x.astype(np.float64), axis=tuple(axes), keepdims=keep)
    found = eval_op(f"reduce_{op}", x=x, axes=axes, keep_dims=keep)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.shape(found) == np.shape(expected)


@pytest.mark.parametrize(("op", "expected"), [("sum", 0), ("prod", 1), ("sum_square", 0)])
def test_nothing_to_reduce(op: str, expected: int) -> None:
    same(f"reduce_{op}", [expected] * 2, x=np.zeros((2, 0), np.float32), axes=[1])


RUN = f32([[1, 2, 3], [4, 5, 6]])


@settings(max_examples=40)
@given(arrays(), st.data())
def test_as_torch_has_it(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    expected = torch.from_numpy(x).double().cumsum(axis)
    close("cumsum", expected.float(), x=x, axis=axis)
    left_out = expected - torch.from_numpy(x)
    result = eval_op("cumsum", x=x, axis=axis, exclusive=True)
    np.testing.assert_allclose(result, left_out, atol=1e-5)


IMAGE = noise(2, 3, 4, 5)
GAMMA, BETA = noise(3, seed=1), noise(3, seed=2)


@pytest.mark.parametrize("axes", [[-1], [2, 3], [-1, -2], [1, 2, 3]])
def test_layer_norm(axes: list[int]) -> None:
    shape = [IMAGE.shape[a] for a in sorted(a % 4 for a in axes)]
    gamma, beta = noise(*shape, seed=1), noise(*shape, seed=2)
    tensors = [torch.from_numpy(a) for a in (IMAGE, gamma, beta)]
    expected = F.layer_norm(tensors[0], shape, tensors[1], tensors[2], 1e-3)
    close("layer_norm", expected, x=IMAGE, axes=axes, gamma=gamma, beta=beta, epsilon=1e-3)


def test_l2_norm() -> None:
    close("l2_norm", f32([[[0.6], [0.8]]]), x=f32([[[3], [4]]]), epsilon=0.0)
    expected = IMAGE / np.sqrt((IMAGE**2).sum(axis=(1, 2, 3), keepdims=True) + 0.5)
    close("l2_norm", expected, x=IMAGE, epsilon=0.5)
    x = noise(2, 2, 3, 4, 5)
    expected = x / np.sqrt((x**2).sum((2, 3, 4), keepdims=True) + 1e-6)
    close("l2_norm", expected, x=x)
    same("l2_norm", np.zeros((1, 1, 2)), x=np.zeros((1, 1, 2), np.float32))


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4, 5), (1, 3, 2, 2, 2)])
def test_any_rank_and_any_of_gamma_and_beta(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    mean, variance = noise(3, seed=3), np.abs(noise(3, seed=4)) + 0.1
    tensors = [torch.from_numpy(a) for a in (x, mean, variance, GAMMA, BETA)]
    close("batch_norm", F.batch_norm(*tensors[:4]), x=x, mean=mean, variance=variance, gamma=GAMMA)
    close("batch_norm", F.batch_norm(*tensors[:3], None, tensors[4]), x=x, mean=mean,
          variance=variance, beta=BETA)  # fmt: skip
    close("instance_norm", F.instance_norm(tensors[0], weight=tensors[3]), x=x, gamma=GAMMA)
    close("instance_norm", F.instance_norm(tensors[0], bias=tensors[4]), x=x, beta=BETA)
    close("layer_norm", F.layer_norm(tensors[0], shape), x=x)
    gamma, beta = noise(shape[-1], seed=1), noise(shape[-1], seed=2)
    plain = F.layer_norm(tensors[0], shape[-1:]).numpy()
    close("layer_norm", plain * gamma, x=x, axes=[-1], gamma=gamma)
    close("layer_norm", plain + beta, x=x, axes=[-1], beta=beta)


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 5, 3, 4), (1, 5, 2, 2, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 12])
def test_local_response_norm_as_torch(shape: tuple[int, ...], size: int) -> None:
    x = noise(*shape) * 9
    expected = F.local_response_norm(torch.from_numpy(x), size, 0.01, 0.75, 2.0)
    close("local_response_norm", expected, x=x, size=size, alpha=0.01, k=2.0)
    close("local_response_norm", F.local_response_norm(torch.from_numpy(x), size), x=x, size=size)


LITERALS = [
    case("reduce_sum", [-1, 7], x=X.astype(np.int32), axes=[1]),
    case("reduce_argmax", [0, 1], x=X, axis=1),
    case("reduce_argmin", [[0, 0]], x=X, axis=0, keep_dims=True),
    case("reduce_argmax", 0, x=f32([5, 5, 1])),
    case("cumsum", [[1, 2, 3], [5, 7, 9]], x=RUN),
    case("cumsum", [[5, 7, 9], [4, 5, 6]], x=RUN, axis=0, reverse=True),
    case("cumsum", [[1, 3, 6], [4, 9, 15]], x=RUN, axis=-1),
    case("cumsum", [[0, 1, 3], [0, 4, 9]], x=RUN, axis=1, exclusive=True),
    case("cumsum", [[5, 3, 0], [11, 6, 0]], x=RUN, axis=1, exclusive=True, reverse=True),
    case("cumsum", [0], x=f32([np.inf]), exclusive=True),
    case("cumsum", [0, 1, np.inf], x=f32([1, np.inf, np.nan]), exclusive=True),
    case("batch_norm", [[[-1, 0, 1]]], x=f32([[[9999, 10000, 10001]]]), mean=f32([10000]),
         variance=f32([1]), epsilon=0.0),
]  # fmt: skip


@pytest.mark.parametrize(("op", "expected", "parameters"), LITERALS)
def test_written_out(op: str, expected: Any, parameters: dict[str, Any]) -> None:
    same(op, expected, **parameters)
