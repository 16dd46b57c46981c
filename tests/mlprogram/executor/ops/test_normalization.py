"""Normalisation layers, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from pytest_ane.mlprogram.executor import eval_op
from tests.mlprogram.executor.ops.oracle import close, f32, noise, same

X = noise(2, 3, 4, 5)
GAMMA, BETA = noise(3, seed=1), noise(3, seed=2)


@pytest.mark.parametrize("axes", [[-1], [2, 3], [-1, -2], [1, 2, 3]])
def test_layer_norm(axes: list[int]) -> None:
    shape = [X.shape[a] for a in sorted(a % 4 for a in axes)]
    gamma, beta = noise(*shape, seed=1), noise(*shape, seed=2)
    tensors = [torch.from_numpy(a) for a in (X, gamma, beta)]
    expected = F.layer_norm(tensors[0], shape, tensors[1], tensors[2], 1e-3)
    close("layer_norm", expected, x=X, axes=axes, gamma=gamma, beta=beta, epsilon=1e-3)


def test_layer_norm_over_everything() -> None:
    close("layer_norm", F.layer_norm(torch.from_numpy(X), X.shape), x=X)


def test_layer_norm_over_channels_first() -> None:
    """Axis 1 of `[1, C, 1, T]`, as on the ANE."""
    centred = X - X.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(X.var(axis=1, keepdims=True) + 1e-5)
    close("layer_norm", expected * GAMMA.reshape(1, 3, 1, 1), x=X, axes=[1], gamma=GAMMA)


def test_batch_norm() -> None:
    mean, variance = noise(3, seed=3), np.abs(noise(3, seed=4)) + 0.1
    tensors = [torch.from_numpy(a) for a in (X, mean, variance, GAMMA, BETA)]
    close("batch_norm", F.batch_norm(*tensors[:3], eps=1e-5), x=X, mean=mean, variance=variance)
    close("batch_norm", F.batch_norm(*tensors, eps=1e-3), x=X, mean=mean, variance=variance,
          gamma=GAMMA, beta=BETA, epsilon=1e-3)  # fmt: skip


def test_instance_norm() -> None:
    tensors = [torch.from_numpy(a) for a in (X, GAMMA, BETA)]
    close("instance_norm", F.instance_norm(tensors[0]), x=X)
    close("instance_norm", F.instance_norm(tensors[0], weight=tensors[1], bias=tensors[2]), x=X,
          gamma=GAMMA, beta=BETA)  # fmt: skip


def test_l2_norm() -> None:
    close("l2_norm", f32([[[0.6], [0.8]]]), x=f32([[[3], [4]]]), epsilon=0.0)
    expected = X / np.sqrt((X**2).sum(axis=(1, 2, 3), keepdims=True) + 0.5)
    close("l2_norm", expected, x=X, epsilon=0.5)


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
    gamma, beta = noise(shape[-1], seed=1), noise(shape[-1], seed=2)
    plain = F.layer_norm(tensors[0], shape[-1:]).numpy()
    close("layer_norm", plain * gamma, x=x, axes=[-1], gamma=gamma)
    close("layer_norm", plain + beta, x=x, axes=[-1], beta=beta)


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    same("batch_norm", [[[-1, 0, 1]]], x=f32([[[9999, 10000, 10001]]]), mean=f32([10000]),
         variance=f32([1]), epsilon=0.0)  # fmt: skip


def test_l2_norm_by_batch() -> None:
    x = noise(2, 2, 3, 4, 5)
    expected = x / np.sqrt((x**2).sum((2, 3, 4), keepdims=True) + 1e-6)
    close("l2_norm", expected, x=x)
    same("l2_norm", np.zeros((1, 1, 2)), x=np.zeros((1, 1, 2), np.float32))


@pytest.mark.parametrize("shape", [(2, 5, 4), (2, 5, 3, 4), (1, 5, 2, 2, 2)])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 12])
def test_local_response_norm_as_torch(shape: tuple[int, ...], size: int) -> None:
    x = noise(*shape) * 9
    expected = F.local_response_norm(torch.from_numpy(x), size, 0.01, 0.75, 2.0)
    close("local_response_norm", expected, x=x, size=size, alpha=0.01, k=2.0)


def test_local_response_norm_and_its_defaults() -> None:
    x = f32([[[1.0], [5.0], [-3.0]]])
    sums = f32([[[26], [35], [34]]])
    close("local_response_norm", x / (1 + 1e-4 / 3 * sums) ** 0.75, x=x, size=3)
    with pytest.raises(Exception, match="do not exist"):
        eval_op("local_response_norm", x=x, size=0)


@pytest.mark.parametrize("op", ["layer_norm", "instance_norm", "l2_norm"])
def test_float64_stays(op: str) -> None:
    assert eval_op(op, x=X.astype(np.float64)).dtype == np.float64
