"""The float32 reference against plain loops in float64, and ANE forms against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ane.models.families.zaya import ZayaModel
from tests.models.families.zaya import oracle
from tests.models.families.zaya.tiny import CONTEXT, tiny_model

TOLERANCE = 2e-5


def hidden(rng: np.random.Generator, length: int, width: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal((length, width)) * scale).astype(np.float32)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() <= TOLERANCE * max(1.0, np.abs(expected).max())


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    width=st.integers(2, 9),
    experts=st.integers(1, 4),
    ffn=st.integers(1, 6),
    router=st.integers(1, 6),
    scale=st.sampled_from([1e-3, 1.0, 300.0]),
    seed=st.integers(0, 99),
)
def test_a_mixture(
    lengths: list[int], width: int, experts: int, ffn: int, router: int, scale: float, seed: int
) -> None:
    model = tiny_model(width=width, experts=experts, ffn=ffn, router=router, seed=seed)
    rng = np.random.default_rng(seed)
    sequences = [hidden(rng, length, width, scale) for length in lengths]
    own = oracle.weights(model.source.tensors, 1)
    given = model.reference("L01")(sequences)
    assert len(given) == len(sequences)
    for actual, x in zip(given, sequences, strict=True):
        assert_close(actual, oracle.mixture(x, own, experts))


@pytest.mark.drawn
@pytest.mark.slow
@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    width=st.integers(2, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    quarter=st.integers(1, 2),
    overflowing=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention(
    lengths: list[int],
    width: int,
    kv_heads: int,
    group: int,
    quarter: int,
    overflowing: bool,
    seed: int,
) -> None:
    model = tiny_model(
        width=width,
        kv_heads=kv_heads,
        group=group,
        head=4 * quarter,
        overflowing=overflowing,
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    sequences = [hidden(rng, length, width) for length in lengths]
    own = oracle.weights(model.source.tensors, 0)
    for actual, x in zip(model.reference("L00")(sequences), sequences, strict=True):
        expected = oracle.attention(
            x,
            own,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            rotary=2 * quarter,
            theta=100.0,
            convolved=not overflowing,
        )
        assert_close(actual, expected)


def test_no_expert_s_weight_is_dropped() -> None:
    """A router that is sure of the last slot leaves the residual stream alone."""
    model = tiny_model()
    tensors = model.source.tensors
    tensors["model.layers.1.zaya_block.router.balancing_biases"] = np.float32([0, 0, 0, 200])
    x = hidden(np.random.default_rng(0), 3, 12)
    (actual,) = model.reference("L01")([x])
    own = {n: tensors[f"model.layers.1.res_scale.{n}"] for n in ("residual_scale",)}
    own["bias"] = sum(
        tensors[f"model.layers.1.res_scale.{n}_bias"] for n in ("residual", "hidden_states")
    )
    np.testing.assert_allclose(
        actual, x * own["residual_scale"] + own["bias"], rtol=1e-5, atol=1e-6
    )


def test_routes_are_told_without_experts() -> None:
    model = tiny_model()
    routed = model.routed("L01")
    assert routed is not None
    ((route, *_),) = routed([np.ones((2, 12), np.float32)])
    assert route
    assert not [name for name in model.source.read if "experts" in name]


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


def assert_ane_close(actual: np.ndarray, expected: np.ndarray) -> None:
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
    assert_ane_close(in_steps(model, "L01", hidden, [length]), expected)


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
    assert_ane_close(in_steps(model, "L00", hidden, steps), expected)


def test_a_full_state() -> None:
    model = tiny_model()
    hidden = np.random.default_rng(0).standard_normal((CONTEXT, 12)).astype(np.float32)
    (expected,) = model.reference("L00")([hidden])
    assert_ane_close(in_steps(model, "L00", hidden, [4] * (CONTEXT // 4)), expected)
    assert_ane_close(in_steps(model, "L00", hidden, [1] * CONTEXT), expected)


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
