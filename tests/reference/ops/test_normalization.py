"""Normalisation layers, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.reference.ops.oracle import close, f32, noise

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
