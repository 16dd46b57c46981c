"""The ANE form: the same numbers as the reference, and a norm that fp16 cannot overflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.families.llama.ane import ScaledRMSNorm
from tests.families.llama.tiny import tiny_model

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


def test_squaring_first_overflows() -> None:
    """What the norm is for: fp16 has no 256^2."""
    assert torch.isinf(torch.tensor(256.0).half() ** 2)


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
    inputs = {k: torch.from_numpy(v) for k, v in layout.inputs(hidden).items()}
    with torch.inference_mode():
        actual = layout.output({"y": module(**inputs).numpy()})
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
            y = module(**{name: torch.from_numpy(value) for name, value in inputs.items()})
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
