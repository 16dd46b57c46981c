"""The float32 reference against formulas and an independent float64 block; ANE forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families.llama.tiny import tiny_model


@pytest.mark.parametrize("position", [0, 2])
def test_nan_in_is_nan_out(position: int) -> None:
    x = np.ones((3, 16), np.float32)
    x[position, 5] = np.nan
    assert np.isnan(tiny_model().reference("L00")([x])[0][position:]).all()


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
