"""The float32 reference against formulas and an independent float64 block; ANE forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families.llama import oracle
from tests.models.families.llama.tiny import tiny_model


@settings(max_examples=25)
@given(
    length=st.integers(1, 6),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    pairs=st.integers(1, 4),
    ffn=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_a_block_is_the_independent_one(
    length: int, kv_heads: int, group: int, pairs: int, ffn: int, seed: int
) -> None:
    heads = kv_heads * group
    model = tiny_model(heads=heads, kv_heads=kv_heads, head=2 * pairs, ffn=ffn, seed=seed)
    x = np.random.default_rng(seed).standard_normal((length, model.config.width))
    weights = {
        name.split(".")[2]: value
        for name, value in model.source.tensors.items()
        if name.startswith("blk.")
    }
    expected = oracle.block(x, weights, heads=heads, kv_heads=kv_heads)
    actual = model.reference("L00")([x.astype(np.float32)])[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert actual.dtype == np.float32


def test_a_block_is_causal() -> None:
    reference = tiny_model().reference("L00")
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    changed = x.copy()
    changed[3:] += 1
    before, after = reference([x, changed])
    np.testing.assert_allclose(after[:3], before[:3], rtol=1e-5, atol=1e-6)
    assert np.abs(after[3:] - before[3:]).min(axis=1).max() > 0


def test_head_slices_side_by_side_are_all_logits() -> None:
    model = tiny_model(("head.0", "head.1", "head.2"))
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    logits = np.concatenate([model.reference(f"head.{i}")([x])[0] for i in range(3)], axis=1)
    tensors = model.source.tensors
    normed = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)
    expected = (normed * tensors["output_norm.weight"]) @ tensors["token_embd.weight"].T
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", [0, 2])
def test_nan_in_is_nan_out(position: int) -> None:
    x = np.ones((3, 16), np.float32)
    x[position, 5] = np.nan
    assert np.isnan(tiny_model().reference("L00")([x])[0][position:]).all()


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=25)
@given(
    length=st.integers(1, 7),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    pairs=st.integers(1, 4),
    scale=st.sampled_from([1e-2, 1.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_a_block_equals_the_reference(
    length: int, kv_heads: int, group: int, pairs: int, scale: float, seed: int
) -> None:
    model = tiny_model(heads=kv_heads * group, kv_heads=kv_heads, head=2 * pairs, seed=seed)
    x = np.random.default_rng(seed).standard_normal((length, model.config.width)) * scale
    hidden = x.astype(np.float32)
    (expected,) = model.reference("L00")([hidden])
    module = model.conversion("L00").module
    layout = model.layout("L00")
    inputs = [torch.from_numpy(value) for value in layout.inputs(hidden).values()]
    with torch.inference_mode():
        actual = layout.output({"y": module(*inputs).numpy()})
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


@settings(max_examples=20)
@given(
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_a_stateful_block_in_any_steps_equals_the_reference(
    steps: list[int], kv_heads: int, group: int, seed: int
) -> None:
    model = tiny_model(heads=kv_heads * group, kv_heads=kv_heads, context=16, seed=seed)
    hidden = np.random.default_rng(seed).standard_normal((sum(steps), model.config.width))
    (expected,) = model.reference("L00")([hidden.astype(np.float32)])
    module, layout = model.conversion("L00").module.float(), model.layout("L00")
    start, rows = 0, []
    for length in steps:
        inputs = layout.inputs(hidden[start : start + length].astype(np.float32), start)
        with torch.inference_mode():
            y = module(*map(torch.from_numpy, inputs.values()))
        rows.append(layout.output({"y": y.numpy()}))
        start += length
    actual = np.concatenate(rows)
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


def test_every_projection_is_a_1x1_convolution() -> None:
    module = tiny_model().conversion("L00").module
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 7
    assert {m.kernel_size for m in convolutions} == {(1, 1)}
    assert not [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
