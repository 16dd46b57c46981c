"""The ANE forms in float32: the same numbers as the reference, in steps of any lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.zaya import ZayaModel
from tests.models.families.zaya.tiny import CONTEXT, tiny_model


def in_steps(model: ZayaModel, shard: str, hidden: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """What the module in float32 gives for a sequence that enters in calls of these lengths."""
    module, layout = model.conversion(shard).module.float(), model.layout(shard)
    start, rows = 0, []
    for length in steps:
        inputs = layout.inputs(hidden[start : start + length], start)
        with torch.inference_mode():
            y = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        rows.append(layout.output({"y": y.numpy()}))
        start += length
    return np.concatenate(rows)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


@settings(max_examples=20)
@given(
    length=st.integers(1, 5),
    width=st.integers(2, 9),
    experts=st.integers(1, 4),
    ffn=st.integers(1, 6),
    scale=st.sampled_from([1e-2, 1.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_a_mixture_equals_the_reference(
    length: int, width: int, experts: int, ffn: int, scale: float, seed: int
) -> None:
    model = tiny_model(width=width, experts=experts, ffn=ffn, seed=seed)
    x = np.random.default_rng(seed).standard_normal((length, width)) * scale
    hidden = x.astype(np.float32)
    (expected,) = model.reference("L01")([hidden])
    assert_close(in_steps(model, "L01", hidden, [length]), expected)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    quarter=st.integers(1, 2),
    overflowing=st.booleans(),
    scale=st.sampled_from([1e-2, 1.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_attention_in_any_steps_equals_the_reference(
    steps: list[int],
    kv_heads: int,
    group: int,
    quarter: int,
    overflowing: bool,
    scale: float,
    seed: int,
) -> None:
    model = tiny_model(
        kv_heads=kv_heads, group=group, head=4 * quarter, overflowing=overflowing, seed=seed
    )
    x = np.random.default_rng(seed).standard_normal((sum(steps), 12)) * scale
    hidden = x.astype(np.float32)
    (expected,) = model.reference("L00")([hidden])
    assert_close(in_steps(model, "L00", hidden, steps), expected)


def test_a_full_state() -> None:
    model = tiny_model()
    hidden = np.random.default_rng(0).standard_normal((CONTEXT, 12)).astype(np.float32)
    (expected,) = model.reference("L00")([hidden])
    assert_close(in_steps(model, "L00", hidden, [4] * (CONTEXT // 4)), expected)
    assert_close(in_steps(model, "L00", hidden, [1] * CONTEXT), expected)


def test_a_head_equals_the_reference() -> None:
    model = tiny_model(("head.0", "head.1"))
    hidden = np.random.default_rng(0).standard_normal((3, 12)).astype(np.float32)
    (expected,) = model.reference("head.1")([hidden])
    # The projection is fp16, as the weights of the tiny model are.
    assert_close(in_steps(model, "head.1", hidden, [3]), expected)


def test_zero_states_stay_finite_in_fp16() -> None:
    """Queries and keys of length 0 are not divided by 0."""
    model = tiny_model()
    for name, tensor in model.source.tensors.items():
        if "conv_qk" in name:
            tensor[:] = 0
    module, layout = model.conversion("L00").module, model.layout("L00")
    inputs = layout.inputs(np.zeros((2, 12), np.float32))
    y = module(**{name: torch.from_numpy(value).half() for name, value in inputs.items()})
    assert y.dtype == torch.float16
    assert torch.isfinite(y).all()


@pytest.mark.parametrize(
    ("shard", "dimensions", "convolutions"),
    [
        ("L00", {}, 4),
        ("L00", {"overflowing": True}, 2),
        ("L01", {"experts": 16}, 36),
        ("head.0", {}, 1),
    ],
)
def test_how_many_convolutions(shard: str, dimensions: dict[str, int], convolutions: int) -> None:
    module = tiny_model((shard,), **dimensions).conversion(shard).module
    assert sum(isinstance(m, torch.nn.Conv2d) for m in module.modules()) == convolutions
    assert not [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    assert {p.dtype for p in module.parameters()} == {torch.float16}
