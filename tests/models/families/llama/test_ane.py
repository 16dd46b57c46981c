"""The ANE form: the same numbers as the reference."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families.llama.tiny import tiny_model


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


def test_a_head_equals_the_reference() -> None:
    model = tiny_model(("head.0", "head.1"))
    hidden = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    module, layout = model.conversion("head.1").module, model.layout("head.1")
    with torch.inference_mode():
        y = module(torch.from_numpy(layout.inputs(hidden)["x"])).numpy()
    (expected,) = model.reference("head.1")([hidden])
    np.testing.assert_allclose(layout.output({"y": y}), expected, rtol=1e-4, atol=1e-5)


def test_every_projection_is_a_1x1_convolution() -> None:
    module = tiny_model().conversion("L00").module
    convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 7
    assert {m.kernel_size for m in convolutions} == {(1, 1)}
    assert not [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
