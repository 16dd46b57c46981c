"""A norm that fp16 cannot overflow, and convolutions that share the memory of their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ane.models.families._ane import ScaledLayerNorm, ScaledRMSNorm, convolution, pointwise

EPSILON = 1e-5


def norm16(x: np.ndarray) -> np.ndarray:
    """The norm in fp16 arithmetic, weights 1, of channels `[C]`."""
    norm = ScaledRMSNorm(torch.ones(len(x)), EPSILON).half()
    return norm(torch.from_numpy(x).half().reshape(1, -1, 1, 1)).flatten().double().numpy()


def formula(x: np.ndarray) -> np.ndarray:
    """Float64, of the values as fp16 holds them."""
    wide = x.astype(np.float16).astype(np.float64)
    result: np.ndarray = wide / np.sqrt(np.mean(wide**2) + EPSILON)
    return result


def channels(largest: float, others: float) -> np.ndarray:
    """576 channels, one of them the largest."""
    x = np.random.default_rng(0).standard_normal(576).astype(np.float32) * others
    x[507] = largest
    return x


@pytest.mark.parametrize("largest", [21_953.0, 65_504.0, 680.0, 256.0, 1.0, 0.01])
def test_fp16_survives_large_and_usual_inputs(largest: float) -> None:
    x = channels(largest, largest / 100)
    np.testing.assert_allclose(norm16(x), formula(x), rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("scale", [1e-3, 1e-5, 2.0**-24])
def test_fp16_survives_tiny_inputs(scale: float) -> None:
    """Where every square is zero in fp16 and epsilon decides alone."""
    x = channels(scale, scale)
    np.testing.assert_allclose(norm16(x), formula(x), rtol=2e-2, atol=1e-6)


def test_zero_stays_zero() -> None:
    assert norm16(np.zeros(64, np.float32)).tolist() == [0] * 64


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_does_not_become_finite(bad: float) -> None:
    x = channels(1.0, 1.0)
    x[3] = bad
    assert np.isnan(norm16(x)[3])


@given(st.floats(2.0**-10, 1000), st.integers(0, 99))
def test_in_float32_it_is_the_plain_norm(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((1, 24, 3, 1)) * scale).float()
    weight = torch.from_numpy(rng.uniform(0.5, 2, 24)).float()
    plain = (
        x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPSILON) * weight.reshape(1, -1, 1, 1)
    )
    torch.testing.assert_close(ScaledRMSNorm(weight, EPSILON)(x), plain, rtol=1e-5, atol=1e-6)


def test_a_pointwise_convolution_is_a_linear_map_without_a_copy() -> None:
    weight, bias = torch.randn(3, 2), torch.randn(3)
    conv = pointwise(weight, bias)
    x = torch.randn(1, 2, 4, 1)
    expected = weight @ x[0, :, :, 0] + bias[:, None]
    torch.testing.assert_close(conv(x)[0, :, :, 0], expected)
    assert conv.weight.data_ptr() == weight.data_ptr()


def test_each_group_sees_its_own_channels() -> None:
    conv = convolution(torch.tensor([1.0, 10.0]).reshape(2, 1, 1, 1), groups=2)
    assert conv(torch.ones(1, 2, 1, 1)).flatten().tolist() == [1, 10]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_number_is_divided_by_a_tensor() -> None:
    """That is a reciprocal to torch, and MIL's `inverse` adds 1e-4 to what it divides by."""
    trace: Any = torch.jit.trace
    for norm in (ScaledRMSNorm(torch.ones(8), 1e-6), ScaledLayerNorm(*torch.ones(2, 8), 1e-6)):
        graph = str(trace(norm.eval(), torch.rand(1, 8, 4, 1)).inlined_graph)
        assert "aten::div" in graph
        assert "aten::reciprocal" not in graph
    assert "aten::reciprocal" in str(trace(lambda x: 1e-3 / x, torch.rand(1)).inlined_graph)
