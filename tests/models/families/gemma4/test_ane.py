"""Attention and head in ANE form: the reference's numbers, step by step and in larger calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.ane import ScaledRMSNorm
from pytest_ane.models.families.gemma4 import Gemma4Model
from tests.models.families.gemma4.tiny import hidden, tiny_model

CONTEXT = 12


def steps(model: Gemma4Model, shard: str, x: np.ndarray, size: int) -> np.ndarray:
    """Attention on `x [T, C]`, `size` positions a call, in float32."""
    layout, module = model.layout(shard), model.conversion(shard).module.float()
    rows = []
    with torch.no_grad():
        for start in range(0, len(x), size):
            inputs = layout.inputs(x[start : start + size], start)
            names = ("x", "cos", "sin", "mask", "write")
            y = module(*(torch.from_numpy(inputs[name]) for name in names))
            rows.append(layout.output({"y": y.numpy()}))
    return np.concatenate(rows)


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(1, CONTEXT),
    size=st.integers(1, 4),
    window=st.integers(1, CONTEXT),
    layer=st.integers(0, 1),
    seed=st.integers(0, 99),
)
def test_calls_of_any_size_agree_with_the_reference(
    length: int, size: int, window: int, layer: int, seed: int
) -> None:
    model = tiny_model(seed=seed, sliding_window=window, context=CONTEXT)
    x, shard = hidden(length, 8, seed), f"L0{layer}.attn"
    expected = model.reference(shard)([x])[0]
    np.testing.assert_allclose(steps(model, shard, x, size), expected, rtol=2e-4, atol=2e-5)


def test_a_sliding_layer_forgets_and_a_global_one_does_not() -> None:
    """Position 5 with a window of 3 sees positions 3 to 5."""
    model = tiny_model(context=CONTEXT)
    x, other = hidden(6, 8), hidden(6, 8)
    other[:3] = hidden(3, 8, seed=9)
    for shard, forgets in (("L00.attn", True), ("L01.attn", False)):
        last = [steps(model, shard, rows, 2)[5] for rows in (x, other)]
        assert np.allclose(*last, atol=1e-6) == forgets


def test_head() -> None:
    model = tiny_model(["head.0", "head.1"])
    x = hidden(3, 8)
    head = model.conversion("head.1").module.float()
    y = head(torch.from_numpy(x.T.copy())[None, :, :, None])[0, :, :, 0].T
    expected = model.reference("head.1")([x])[0]
    np.testing.assert_allclose(y.numpy(), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("largest", [21_953.0, 65_504.0, 256.0, 1.0, 0.01])
def test_norm_in_fp16_survives_large_inputs(largest: float) -> None:
    x = (hidden(1, 64) * largest / 100).astype(np.float16)
    x[0, 7] = largest
    norm = ScaledRMSNorm(torch.ones(64).half(), 1e-6)
    y = norm(torch.from_numpy(x)[..., None, None]).flatten().double().numpy()
    wide = x[0].astype(np.float64)
    np.testing.assert_allclose(y, wide / np.sqrt((wide**2).mean() + 1e-6), rtol=5e-3, atol=2e-3)
